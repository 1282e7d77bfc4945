"""What a container that wants a GPU asks for, as one value. Pure.

Rules: nvidia-container-toolkit.md 1.6 to 1.9. Imported only when ``hook.environment`` found a request.
"""

from __future__ import annotations

from hook import modes, mount_requests
from hook.environment import chosen, decide, is_legacy_image, is_true, items, visible_devices
from nvc.base.errors import InputError, MigConfigError, MigMonitorError, escaped, shown
from nvc.base.record import Record
from nvc.request.capabilities import WORDS
from nvc.request.selection import parse_imex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hook.config import HookConfig

#: CDI kinds of NVIDIA's GPUs; device names as ``nvc-py cdi generate`` and nvidia-ctk write them.
GPU_KINDS = ("nvidia.com/gpu", "runtime.nvidia.com/gpu")
#: Of these kinds a container may name CDI devices itself: a device of another vendor's can be a directory of the host,
#: or a program that the host runs.
KINDS = (*GPU_KINDS, "nvidia.com/imex-channel")
DRIVER_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
#: What a container gets that does not say (the toolkit's default, not the library's).
DEFAULT_CAPABILITIES = ("compute", "utility")
_REQUIRE, _JETPACK = "NVIDIA_REQUIRE_", "NVIDIA_REQUIRE_JETPACK"


#: Of a text of the container in a message.
_SHOWN = 100


class HookRequest(Record):
    """devices: selectors for ``nvc.request.selection``, () for the driver without a GPU. capabilities: sorted words.

    requirements: expressions, sorted; all must hold. mig_config, mig_monitor: "all", a list, or "".
    imex: channel numbers in the order asked for. all_csv: on a Tegra, what every mount list names.
    """

    devices: tuple[str, ...]
    capabilities: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    mig_config: str = ""
    mig_monitor: str = ""
    imex: tuple[int, ...] = ()
    all_csv: bool = False


def build(
    env: Mapping[str, str],
    *,
    privileged: bool,
    config: HookConfig,
    device_mounts: Sequence[str] = (),
    warn: Callable[[str], None] = lambda text: None,
) -> HookRequest | None:
    """What a container asks for by mounts or environment; None when it may not ask for a GPU, or does not.

    Raises InputError for capabilities that do not exist or are not supported here, for a CUDA_VERSION that is no
    version and for CDI devices, which are not given by a hook; MigConfigError and MigMonitorError when an unprivileged
    container wants to manage MIG, ImexError for a channel that cannot exist.
    """
    devices = visible(env, privileged=privileged, config=config, device_mounts=device_mounts, warn=warn)
    if devices is None:
        return None
    own = modes.own_names(devices, config)
    return complete(own, env, privileged=privileged, config=config, device_mounts=device_mounts)


def visible(
    env: Mapping[str, str],
    *,
    privileged: bool,
    config: HookConfig,
    device_mounts: Sequence[str],
    warn: Callable[[str], None],
) -> tuple[str, ...] | None:
    """The devices that a container asks for and may ask for, by their names; None: none, (): the driver alone."""
    mounts = tuple(device_mounts) if config.accept_mounts else ()
    if device_mounts and not mounts:
        warn("ignoring device requests by volume mounts: accept-nvidia-visible-devices-as-volume-mounts is not set")
    by_mount = mount_requests.devices(mounts, warn)
    if by_mount:
        return decide(by_mount)
    if may_ask(privileged, config):
        asked = requested(env, config)
        check_kinds(asked or (), config)
        return asked
    warn("the container is not privileged, and this host does not let its environment ask for devices")
    return None


def may_ask(privileged: bool, config: HookConfig) -> bool:
    """Whether what the container says itself counts: its variables, and its annotations outside of Kubernetes."""
    return privileged or config.accept_env_unprivileged


def check_kinds(names: Sequence[str], config: HookConfig) -> None:
    """Raises InputError for a CDI device of a kind that a container may not ask for itself."""
    for name in names:
        kind = name.partition("=")[0]
        if modes.is_cdi(name) and kind not in (*KINDS, config.default_kind, *config.container_kinds):
            raise InputError(
                f"the container asks for {shown(name, _SHOWN)}, a CDI device that is not NVIDIA's",
                hint="give it by the engine (--device), or list its kind in container-kinds of "
                "[nvidia-container-runtime.modes.cdi] in config.toml",
            )


def complete(
    devices: tuple[str, ...],
    env: Mapping[str, str],
    *,
    privileged: bool,
    config: HookConfig,
    device_mounts: Sequence[str] = (),
) -> HookRequest:
    """``devices`` with everything else that the container says about them. Raises as ``build``."""
    mig_config = env.get("NVIDIA_MIG_CONFIG_DEVICES", "")
    mig_monitor = env.get("NVIDIA_MIG_MONITOR_DEVICES", "")
    needs = "run the container with CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN)"
    if mig_config and not privileged:
        raise MigConfigError("NVIDIA_MIG_CONFIG_DEVICES is set in an unprivileged container", hint=needs)
    if mig_monitor and not privileged:
        raise MigMonitorError("NVIDIA_MIG_MONITOR_DEVICES is set in an unprivileged container", hint=needs)
    channels = mount_requests.imex_channels(device_mounts if config.accept_mounts else ())
    if not channels and may_ask(privileged, config):
        channels = items(env.get("NVIDIA_IMEX_CHANNELS", ""))
    return HookRequest(
        devices,
        capabilities(env, config.supported_capabilities),
        () if config.disable_require else requirements(env),
        mig_config,
        mig_monitor,
        () if config.ignore_imex else imex_channels(channels),
        env.get(_JETPACK) == "csv-mounts=all",
    )


def requested(env: Mapping[str, str], config: HookConfig) -> tuple[str, ...] | None:
    """The devices that the environment asks for. A swarm resource that is set, even to nothing, decides alone."""
    present = [env[name] for name in config.swarm_resources if name in env]
    return chosen(",".join(present)) if present else visible_devices(env)


def capabilities(env: Mapping[str, str], supported: tuple[str, ...]) -> tuple[str, ...]:
    """The driver capabilities asked for, sorted.

    Raises InputError when a word is unknown or not supported on this host; "all" asks for what there is.
    """
    value = env.get(DRIVER_CAPABILITIES)
    if value is None and is_legacy_image(env):
        return tuple(sorted(supported))
    words = items(value or "")
    if not words:
        return tuple(sorted(word for word in DEFAULT_CAPABILITIES if word in supported))
    known = set(WORDS if "all" in words else supported)
    lost = [word for word in words if word != "all" and word not in known]
    if lost:
        named = ", ".join(escaped(word[:_SHOWN]) for word in lost[:8])
        raise InputError(
            f"unsupported capabilities found in {DRIVER_CAPABILITIES}={escaped((value or '')[:_SHOWN])}: {named}",
            hint=f"allowed here: all, {', '.join(sorted(supported))}",
        )
    return tuple(sorted(supported if "all" in words else words))


def requirements(env: Mapping[str, str]) -> tuple[str, ...]:
    """The expressions that the host must satisfy, each once, sorted so that messages are the same every time.

    Raises InputError for a legacy image whose CUDA_VERSION is not a version.
    """
    if is_true(env.get("NVIDIA_DISABLE_REQUIRE", "")):
        return ()
    # JETPACK variables are instructions for Tegra's csv files, not conditions.
    found = {value for name, value in env.items() if name.startswith(_REQUIRE) and not name.startswith(_JETPACK)}
    if is_legacy_image(env):
        found.add(f"cuda>={_major_minor(env['CUDA_VERSION'])}")
    return tuple(sorted(value for value in found if value.strip()))


def imex_channels(mounts: Sequence[str]) -> tuple[int, ...]:
    """The IMEX channels asked for. Raises ImexError for anything that is not a channel number.

    "all" is ignored: images used to carry it without meaning it. "none" is none (the reference's newer path
    takes it for all of them).
    """
    names = decide(tuple(mounts))
    if not names or names == ("all",):
        return ()
    return tuple(dict.fromkeys(parse_imex(",".join(name.removeprefix("channel") or name for name in names))))


#: Major, minor and patch are below these.
_VERSION_LIMITS = (1 << 32, 1 << 32, 1 << 64)


def _major_minor(version: str) -> str:
    """MAJOR.MINOR of a version such as 9.0.176, v10, 11.2.0-rc1."""
    core, *extra = version.strip().removeprefix("v").replace("+", "-").split("-")
    parts = core.split(".")
    numbers = all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts)
    fits = numbers and all(int(part) < limit for part, limit in zip(parts, _VERSION_LIMITS, strict=False))
    if not fits or len(parts) > 3 or (extra and len(parts) < 3):
        raise InputError(
            f"CUDA_VERSION={shown(version)} in the container is not a version",
            hint="set NVIDIA_DISABLE_REQUIRE=1 in the container to start it all the same",
        )
    major, minor = [*parts, "0"][:2]
    return f"{int(major)}.{int(minor)}"
