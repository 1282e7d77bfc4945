"""Every key of the container toolkit's config.toml (its specs, section 2): type, and what it sets here.

A row without a field is accepted, because the toolkit's own files have it, and changes nothing: this program needs no
other program's path, and docs/quirks.md says why the rest has no effect.
"""

from __future__ import annotations

CLI, RUNTIME, HOOK = "nvidia-container-cli", "nvidia-container-runtime", "nvidia-container-runtime-hook"

#: section, key, type ("boolean", "string", "list"), field of HookConfig or "". A section is the dotted name of a table.
KEYS: tuple[tuple[str, str, str, str], ...] = (
    ("", "disable-require", "boolean", "disable_require"),
    ("", "swarm-resource", "string", "swarm_resources"),
    ("", "accept-nvidia-visible-devices-envvar-when-unprivileged", "boolean", "accept_env_unprivileged"),
    ("", "accept-nvidia-visible-devices-as-volume-mounts", "boolean", "accept_mounts"),
    ("", "supported-driver-capabilities", "string", "supported_capabilities"),
    (CLI, "root", "string", "root"),
    (CLI, "path", "string", ""),
    (CLI, "environment", "list", ""),
    (CLI, "debug", "string", "debug"),
    (CLI, "ldcache", "string", "ldcache"),
    (CLI, "load-kmods", "boolean", "load_kmods"),
    (CLI, "no-pivot", "boolean", "no_pivot"),
    (CLI, "no-cgroups", "boolean", "no_cgroups"),
    (CLI, "user", "string", "user"),
    (CLI, "ldconfig", "string", "ldconfig"),
    ("nvidia-ctk", "path", "string", ""),
    (HOOK, "path", "string", "hook_path"),
    (HOOK, "skip-mode-detection", "boolean", "skip_mode_detection"),
    (RUNTIME, "debug", "string", "runtime_debug"),
    (RUNTIME, "log-level", "string", "log_level"),
    (RUNTIME, "runtimes", "list", "runtimes"),
    (RUNTIME, "mode", "string", "mode"),
    (f"{RUNTIME}.modes.csv", "mount-spec-path", "string", "csv_directory"),
    (f"{RUNTIME}.modes.csv", "compat-container-root", "string", ""),
    (f"{RUNTIME}.modes.cdi", "spec-dirs", "list", "spec_directories"),
    (f"{RUNTIME}.modes.cdi", "default-kind", "string", "default_kind"),
    (f"{RUNTIME}.modes.cdi", "annotation-prefixes", "list", "annotation_prefixes"),
    (f"{RUNTIME}.modes.jit-cdi", "nvcdi-feature-flags", "list", ""),
    (f"{RUNTIME}.modes.jit-cdi", "nvcdi-disable-hooks", "list", ""),
    (f"{RUNTIME}.modes.legacy", "cuda-compat-mode", "string", "compat_mode"),
    ("mps", "user", "string", "mps_user"),
    ("features", "allow-cuda-compat-libs-from-container", "boolean", "allow_compat"),
    ("features", "allow-ldconfig-from-container", "boolean", ""),
    ("features", "allow-unknown-oci-spec-fields", "boolean", ""),
    ("features", "disable-cuda-compat-lib-hook", "boolean", ""),
    ("features", "disable-imex-channel-creation", "boolean", "create_imex"),
    ("features", "ignore-imex-channel-requests", "boolean", "ignore_imex"),
    ("features", "no-additional-gids-for-device-nodes", "boolean", ""),
)
#: Tables of nvc-py's own file that belong to its other programs.
OTHERS = ("agent", "share", "metrics")
