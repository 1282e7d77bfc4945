"""The commands and options of nvidia-ctk 1.20, one row each: what ``parse`` reads, ``show`` explains, and
docs/reference/nvidia-options.md lists.

Source: github.com/NVIDIA/nvidia-container-toolkit, tag v1.20.0, cmd/nvidia-ctk. The modules beside this one hand the
values to ``nvc.cdi``, ``nvc.engines`` and ``nvc.driver``.
"""

from __future__ import annotations

from typing import NamedTuple

STRING, BOOL, LIST = "string", "bool", "list"


class Flag(NamedTuple):
    """One option. name, aliases: without dashes. variables: read where the option is not given, the first that is set.

    default: a text; for a list its items. ours: the option is not NVIDIA's. hidden: left out of the help.
    """

    name: str
    kind: str
    help: str
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    default: str | tuple[str, ...] = ""
    hidden: bool = False
    ours: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


class Command(NamedTuple):
    """One command. action: module and function that carry it out, "" for a command that only has others below it.

    Its function takes (Values, Log) and gives the exit code.
    """

    name: str
    help: str
    flags: tuple[Flag, ...] = ()
    below: tuple[Command, ...] = ()
    action: str = ""
    aliases: tuple[str, ...] = ()
    #: Whether ``-io FILE`` means ``-i -o FILE``.
    bundled: bool = True


_GENERATE = "NVIDIA_CTK_CDI_GENERATE_"
SPEC_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
CSV_DIRECTORY = "/etc/nvidia-container-runtime/host-files-for-container.d"
CSV_FILES = tuple(f"{CSV_DIRECTORY}/{name}.csv" for name in ("devices", "drivers", "l4t"))
#: The default of --drop-in-config: each engine has its own.
BY_ENGINE = "RUNTIME_SPECIFIC_DEFAULT"
RUNTIME_PROGRAM, HOOK_PROGRAM = "nvidia-container-runtime", "nvidia-container-runtime-hook"
FEATURE_FLAGS = (
    "disable-ipc-discoverer",
    "disable-multiple-csv-devices",
    "disable-nvsandboxutils",
    "enable-coherent-annotations",
    "enable-explicit-driver-libraries",
    "no-additional-gids-for-device-nodes",
)

_OUTPUT = Flag("output", STRING, "write to this file; standard output when empty")
_CONFIGURE = (
    Flag("dry-run", BOOL, "print the files as they would be, and write none"),
    Flag("runtime", STRING, "the engine: containerd, crio, docker or podman", default="docker"),
    Flag("config", STRING, "the engine's main file"),
    Flag("drop-in-config", STRING, "the file beside it that takes the edits", default=BY_ENGINE),
    Flag("executable-path", STRING, "the engine's program, for --config-source=command"),
    Flag("config-mode", STRING, "config-file; oci-hook writes an OCI hook's file instead"),
    Flag("config-source", STRING, "where the present settings come from: command or file", default="file"),
    Flag("oci-hook-path", STRING, "the OCI hook's file; standard output when empty"),
    Flag("nvidia-runtime-name", STRING, "the runtime's name", default="nvidia"),
    Flag("nvidia-runtime-path", STRING, "the runtime's program", aliases=("runtime-path",), default=RUNTIME_PROGRAM),
    Flag("nvidia-runtime-hook-path", STRING, "the OCI hook's program", default=f"/usr/bin/{HOOK_PROGRAM}"),
    Flag("nvidia-set-as-default", BOOL, "make it the engine's default runtime", aliases=("set-as-default",)),
    Flag("cdi.enabled", BOOL, "switch the engine's CDI on", aliases=("cdi.enable", "enable-cdi")),
)
_CDI_GENERATE = (
    Flag(
        "config-search-path", LIST, "look for configuration files here", variables=(f"{_GENERATE}CONFIG_SEARCH_PATHS",)
    ),
    Flag(
        "output",
        STRING,
        "write to this file; standard output when empty",
        variables=("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",),
    ),
    Flag("format", STRING, "yaml or json", variables=(f"{_GENERATE}OUTPUT_FORMAT",), default="yaml"),
    Flag(
        "mode",
        STRING,
        "auto, or what to look for: csv, gdrcopy, gds, imex, management, mofed, nvml, nvswitch, wsl",
        aliases=("discovery-mode",),
        variables=(f"{_GENERATE}MODE",),
        default="auto",
    ),
    Flag("dev-root", STRING, "where /dev is; the driver root when empty", variables=("NVIDIA_CTK_DEV_ROOT",)),
    Flag(
        "device-name-strategy",
        LIST,
        "names of devices: index, uuid, type-index",
        variables=(f"{_GENERATE}DEVICE_NAME_STRATEGIES",),
        default=("index", "uuid"),
    ),
    Flag(
        "driver-root",
        STRING,
        "where the driver is; the configuration's nvidia-container-cli.root when empty",
        variables=("NVIDIA_CTK_DRIVER_ROOT",),
    ),
    Flag("library-search-path", LIST, "look for libraries here", variables=(f"{_GENERATE}LIBRARY_SEARCH_PATHS",)),
    Flag(
        "nvidia-cdi-hook-path",
        STRING,
        "the program that the hooks start",
        aliases=("nvidia-ctk-path",),
        variables=("NVIDIA_CTK_CDI_HOOK_PATH",),
    ),
    Flag("ldconfig-path", STRING, "the ldconfig that the hooks start", variables=(f"{_GENERATE}LDCONFIG_PATH",)),
    Flag(
        "vendor",
        STRING,
        "before the slash of the kind",
        aliases=("cdi-vendor",),
        variables=(f"{_GENERATE}VENDOR",),
        default="nvidia.com",
    ),
    Flag(
        "class",
        STRING,
        "after the slash of the kind",
        aliases=("cdi-class",),
        variables=(f"{_GENERATE}CLASS",),
        default="gpu",
    ),
    Flag("csv.file", LIST, "a Tegra's mount lists", variables=(f"{_GENERATE}CSV_FILES",), default=CSV_FILES),
    Flag(
        "csv.ignore-pattern",
        LIST,
        "links of the mount lists to leave out",
        variables=(f"{_GENERATE}CSV_IGNORE_PATTERNS",),
    ),
    Flag(
        "csv.compat-container-root",
        STRING,
        "where a Tegra's containers have CUDA compat libraries",
        variables=(f"{_GENERATE}CSV_CONTAINER_COMPAT_ROOT",),
    ),
    Flag(
        "disable-hook",
        LIST,
        "leave a hook out; all: every one",
        aliases=("disable-hooks",),
        variables=(f"{_GENERATE}DISABLED_HOOKS",),
    ),
    Flag(
        "enable-hook",
        LIST,
        "take a hook all the same",
        aliases=("enable-hooks",),
        variables=(f"{_GENERATE}ENABLED_HOOKS",),
    ),
    Flag(
        "feature-flag",
        LIST,
        f"one of {', '.join(FEATURE_FLAGS)}",
        aliases=("feature-flags",),
        variables=(f"{_GENERATE}FEATURE_FLAGS",),
    ),
    Flag("no-all-device", BOOL, "make no device all", variables=(f"{_GENERATE}NO_ALL_DEVICE",)),
    Flag(
        "device-id",
        LIST,
        "only these devices, by index, GPU:MIG index or UUID",
        aliases=("device-ids", "device", "devices"),
        variables=(f"{_GENERATE}DEVICE_IDS",),
        default=("all",),
    ),
)
_TRANSFORM = (
    Flag("from", STRING, "the root to replace"),
    Flag("input", STRING, "the specification; - is standard input", default="-"),
    _OUTPUT,
    Flag("relative-to", STRING, "which paths are meant: those of the host or of the container", default="host"),
    Flag("to", STRING, "what it becomes"),
)
_DEVICE_NODES = (
    Flag(
        "root",
        STRING,
        "where modprobe and its modules are",
        aliases=("driver-root",),
        variables=("ROOT", "NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"),
        default="/",
    ),
    Flag("dev-root", STRING, "where /dev is; --root when empty", variables=("NVIDIA_DEV_ROOT", "DEV_ROOT")),
    Flag("control-devices", BOOL, "make nvidiactl, nvidia-modeset, nvidia-uvm and nvidia-uvm-tools"),
    Flag("load-kernel-modules", BOOL, "load the driver's kernel modules first"),
    Flag("dry-run", BOOL, "say what would be done, and do nothing", variables=("DRY_RUN",)),
)
_DEV_CHAR = (
    Flag("dev-char-path", STRING, "where the links go", variables=("DEV_CHAR_PATH",), default="/dev/char"),
    Flag(
        "driver-root",
        STRING,
        "where modprobe and its modules are",
        variables=("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"),
        default="/",
    ),
    Flag("create-all", BOOL, "links also for nodes that do not exist yet", variables=("CREATE_ALL",)),
    Flag(
        "load-kernel-modules",
        BOOL,
        "with --create-all, load the driver's kernel modules first",
        variables=("LOAD_KERNEL_MODULES",),
    ),
    Flag(
        "create-device-nodes",
        BOOL,
        "with --create-all, make the driver's control nodes first",
        variables=("CREATE_DEVICE_NODES",),
    ),
    Flag("dry-run", BOOL, "say what would be done, and do nothing", variables=("DRY_RUN",)),
)
_CONFIG_OUTPUT = _OUTPUT._replace(aliases=("o",))
_CONFIG = (
    Flag(
        "config-file",
        STRING,
        "the file to read; NVIDIA_CTK_CONFIG_FILE_PATH or the usual one when empty",
        aliases=("config", "c"),
    ),
    Flag("set", LIST, "KEY=VALUE, or KEY alone for true; the items of a list stand between colons"),
    Flag("set-list-separator", STRING, "what stands between the items of a list", default=":", hidden=True),
    Flag("in-place", BOOL, "write the file that was read", aliases=("i",)),
    _CONFIG_OUTPUT,
)

ROOT = Command(
    "nvidia-ctk",
    "Configure container engines, CDI and device nodes for NVIDIA GPUs",
    (
        Flag("debug", BOOL, "say more", aliases=("d",), variables=("NVIDIA_CTK_DEBUG",)),
        Flag("quiet", BOOL, "say errors only, also with --debug", variables=("NVIDIA_CTK_QUIET",)),
        Flag("config", STRING, "the toolkit's configuration file", variables=("NVIDIA_CTK_CONFIG",)),
        Flag(
            "sim",
            STRING,
            "use the simulated machine in this directory (nvc-py sim create)",
            variables=("NVC_SIM",),
            ours=True,
        ),
    ),
    (
        # ``hook.ctk`` answers it, before this package is imported.
        Command("hook", "The hooks of CDI specifications; see nvidia-cdi-hook(8)"),
        Command(
            "runtime",
            "Set container engines up",
            below=(
                Command(
                    "configure",
                    "Make an engine start our runtime",
                    _CONFIGURE,
                    action="nvc.cli.ctk.configure:configure",
                    bundled=False,
                ),
            ),
        ),
        Command("info", "Provide information about the system"),
        Command(
            "cdi",
            "Make, list and change CDI specifications",
            below=(
                Command(
                    "generate",
                    "Make the specification of this machine",
                    _CDI_GENERATE,
                    action="nvc.cli.ctk.cdi:generate",
                ),
                Command(
                    "list",
                    "Name every device that an engine can find",
                    (
                        Flag(
                            "spec-dir",
                            LIST,
                            "look for specifications here",
                            variables=("NVIDIA_CTK_CDI_SPEC_DIRS",),
                            default=SPEC_DIRECTORIES,
                        ),
                    ),
                    action="nvc.cli.ctk.cdi:list_devices",
                    bundled=False,
                ),
                Command(
                    "transform",
                    "Change a specification",
                    below=(
                        Command(
                            "root",
                            "Replace the root of its paths",
                            _TRANSFORM,
                            action="nvc.cli.ctk.cdi:transform_root_of",
                        ),
                    ),
                ),
            ),
        ),
        Command(
            "system",
            "Prepare the device nodes of this machine",
            below=(
                Command(
                    "create-dev-char-symlinks",
                    "Make the links of device nodes in /dev/char",
                    _DEV_CHAR,
                    action="nvc.cli.ctk.system:create_dev_char_symlinks",
                    bundled=False,
                ),
                Command(
                    "create-device-nodes",
                    "Make the driver's control nodes",
                    _DEVICE_NODES,
                    action="nvc.cli.ctk.system:create_device_nodes",
                    bundled=False,
                ),
            ),
        ),
        Command(
            "config",
            "Show and change the toolkit's configuration",
            _CONFIG,
            (
                Command(
                    "default",
                    "Print the configuration of a machine that has none",
                    (_CONFIG_OUTPUT,),
                    action="nvc.cli.ctk.config:default",
                    aliases=("create-default", "generate-default"),
                ),
            ),
            action="nvc.cli.ctk.config:config",
        ),
        Command(
            "completion",
            "Print the completion script of a shell",
            below=tuple(
                Command(shell, f"The script for {shell}", action="nvc.cli.ctk.main:complete")
                for shell in ("bash", "zsh", "fish")
            ),
        ),
    ),
)


def find(command: Command, name: str) -> Command | None:
    """The command of this name right below another."""
    return next((one for one in command.below if name in (one.name, *one.aliases)), None)
