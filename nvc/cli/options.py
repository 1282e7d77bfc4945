"""Every option of every command, one row each: the one place. Parsing, --help, --usage, completion and the manual
are made from these rows."""

from __future__ import annotations

from nvc.cli.compat.getopt import Option
from nvc.request.capabilities import MEANINGS

SHELLS = ("bash", "zsh", "fish")

#: Also after the command.
_SIM = Option("sim", "", "DIR", "Use the simulated machine in DIR (made by `nvc-py sim create`).", extra=True)
_JSON = Option("json", "", "", "Print JSON.", extra=True)

#: On every level.
COMMON = (
    Option("help", "?", "", "Show this help and exit; in nvc-py also -h."),
    Option("usage", "", "", "Show a short usage message and exit."),
    Option("version", "V", "", "Show the version and exit."),
)

GLOBAL = (
    Option("debug", "d", "FILE", "Append a debug log to FILE."),
    Option("load-kmods", "k", "", "Load the kernel modules and make their device nodes.", "library_options"),
    Option("no-pivot", "n", "", "Do not use pivot_root for ldconfig (initramfs hosts)."),
    Option(
        "user",
        "u",
        "UID[:GID]",
        "Run the driver service as this user; without a value, as the caller. Names are understood.",
        optional=True,
    ),
    Option("root", "r", "PATH", "Look for the driver below PATH (a containerised driver)."),
    Option("ldcache", "l", "FILE", "Use this loader cache, below the driver root."),
    Option(
        "no-create-imex-channels",
        "",
        "",
        "With --load-kmods, do not make the nodes of the requested IMEX channels.",
        "library_options",
    ),
    _SIM,
    _JSON,
    Option("timeout", "", "SECONDS", "Give the helper processes at most this long for an answer.", extra=True),
    Option("no-cache", "", "", "Ask the driver again instead of using the inventory in /run/nvc.", extra=True),
    Option("completion", "", "SHELL", "Print the completion script for a shell and exit.", choices=SHELLS, extra=True),
    *COMMON,
)

_DRIVER_WORDS = (
    Option("no-persistenced", "", "", "Leave out nvidia-persistenced's socket.", "driver_options"),
    Option("no-fabricmanager", "", "", "Leave out nvidia-fabricmanager's socket.", "driver_options"),
    Option("no-gsp-firmware", "", "", "Leave out the GSP firmware.", "driver_options"),
)
_IMEX = Option("imex-channel", "", "CHANNEL[,CHANNEL...]", "IMEX channels, by number.", repeatable=True)

INFO = (
    Option("csv", "", "", "Print comma-separated values."),
    _JSON,
    _SIM,
    *COMMON,
)

LIST = (
    Option("device", "d", "ID[,ID...]", "Devices: all, index, UUID, bus id, GPU:MIG index.", repeatable=True),
    Option("libraries", "l", "", "List the 64-bit driver libraries."),
    Option("binaries", "b", "", "List the driver binaries."),
    Option("ipcs", "i", "", "List the driver's sockets and MPS directory."),
    Option("firmwares", "f", "", "List the GSP firmware files."),
    Option("compat32", "", "", "With --libraries, list the 32-bit libraries as well."),
    Option("mig-config", "", "ID", "List what configuring MIG on the selected GPUs needs.", choices=("all",)),
    Option("mig-monitor", "", "ID", "List what monitoring MIG on the selected GPUs needs.", choices=("all",)),
    _IMEX,
    *_DRIVER_WORDS,
    _JSON,
    _SIM,
    *COMMON,
)

CONFIGURE = (
    Option("pid", "p", "PID", "A process of the container that an OCI runtime has created."),
    Option("device", "d", "ID[,ID...]", "Devices: all, index, UUID, bus id, GPU:MIG index.", repeatable=True),
    Option("require", "r", "EXPR", "Fail unless this holds, e.g. 'cuda>=12.0 driver>=535'.", repeatable=True),
    Option("ldconfig", "l", "PATH", "The ldconfig to run; @PATH is the host's."),
    *(
        Option(word, short, "", f"Add what {MEANINGS[word]} need{verb}.", "container_options")
        for word, short, verb in (
            ("compute", "c", ""),
            ("utility", "u", ""),
            ("video", "v", "s"),
            ("graphics", "g", ""),
            ("display", "D", ""),
            ("ngx", "n", "s"),
            ("compat32", "", ""),
        )
    ),
    Option("mig-config", "", "ID", "Let the container configure MIG on the selected GPUs.", choices=("all",)),
    Option("mig-monitor", "", "ID", "Let the container monitor MIG on the selected GPUs.", choices=("all",)),
    _IMEX,
    Option("no-cgroups", "", "", "Leave the device cgroup alone.", "container_options"),
    Option(
        "share",
        "",
        "SPEC",
        "Let the container use a part of its GPUs: mem=10Gi,weight=30,cap=50%,priority=high; or off.",
        extra=True,
    ),
    Option(
        "share-fixed",
        "",
        "SPEC",
        "As --share, and final; with group=NAME, containers of one name are one tenant.",
        repeatable=True,
        extra=True,
    ),
    Option("no-devbind", "", "", "Do not bind device nodes.", "container_options"),
    *_DRIVER_WORDS,
    Option("no-cntlibs", "", "", "Old name of --cuda-compat-mode=disabled.", "container_options"),
    Option(
        "cuda-compat-mode",
        "",
        "MODE",
        "What to do with the CUDA forward-compatibility libraries in the container (default: mount).",
        "container_options",
        repeatable=True,
        choices=("mount", "ldconfig", "disabled"),
    ),
    Option(
        "dry-run",
        "",
        "FORMAT",
        "Print what would be done, as text or json, and change nothing.",
        optional=True,
        choices=("text", "json"),
        extra=True,
    ),
    _SIM,
    *COMMON,
)

#: Command -> its rows and the names of its arguments.
COMMANDS: dict[str, tuple[tuple[Option, ...], tuple[str, ...]]] = {
    "info": (INFO, ()),
    "list": (LIST, ()),
    "configure": (CONFIGURE, ("ROOTFS",)),
}

#: Commands of their own, as click groups: module and attribute, imported when called.
GROUPS: dict[str, tuple[str, str]] = {
    "help": ("nvc.cli.about", "help_"),
    "version": ("nvc.cli.about", "version"),
    "completion": ("nvc.cli.about", "completion"),
    "cdi": ("nvc.cli.cdi", "cdi"),
    "cdi-hook": ("nvc.cli.cdi_hook", "cdi_hook"),
    "runtime": ("nvc.cli.runtime", "runtime"),
    "doctor": ("nvc.cli.doctor", "doctor"),
    "share": ("nvc.cli.share.commands", "share"),
    "config": ("nvc.cli.config", "config"),
    "sim": ("nvc.cli.sim", "sim"),
    "top": ("nvc.cli.top.command", "top"),
    "agent": ("nvc.cli.agent", "agent"),
    "seccomp": ("nvc.cli.seccomp", "seccomp"),
    "kube": ("nvc.cli.kube", "kube"),
}

#: One line each, for the overview.
SUMMARIES: dict[str, str] = {
    "info": "Show the driver's version and the GPUs.",
    "list": "List the files and devices that a container needs.",
    "configure": "Give a container its GPUs.",
    "help": "Explain a command.",
    "version": "Show the version.",
    "completion": "Print a shell's completion script.",
    "cdi": "Make, list and check CDI specs.",
    "cdi-hook": "Do what a hook of a CDI spec does (engines call it).",
    "runtime": "Set container engines up to use this program.",
    "doctor": "Look at this host and say what is wrong.",
    "share": "Show and change what containers may use of GPUs.",
    "config": "Show and check the configuration file.",
    "sim": "Make and show simulated machines.",
    "top": "Watch each GPU's usage by container.",
    "agent": "Guard and schedule containers that share GPUs.",
    "seccomp": "Print a seccomp profile that puts containers under the agent's guard.",
    "kube": "Give pods GPUs and shares of them on a Kubernetes node.",
}


def place(option: str, program: str) -> str:
    """Where an option stands that the command does not have, "" for one that the program does not have either."""
    known = [row for row in GLOBAL if f"--{row.long}" == option]
    return f"it stands before the command: {program} {option} ..." if known else ""


def rows(command: str) -> tuple[Option, ...]:
    """The options of a command; "" is the program itself."""
    return COMMANDS[command][0] if command else GLOBAL


def usage(program: str, command: str) -> str:
    """How to call it, and where to read more: the lines after a usage error, in argp's form."""
    name = f"{program} {command}".strip()
    operands = " ".join(("", *COMMANDS[command][1])) if command else " COMMAND [ARG...]"
    return f"Usage: {name} [OPTION...]{operands}\nTry `{name} --help' or `{name} --usage' for more information.\n"
