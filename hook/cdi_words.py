"""The words of a CDI hook's command line: which hooks and options there are, and how they are read."""

from __future__ import annotations

from hook import bundle
from hook.arguments import near
from nvc.base.budgets import TIMEOUT_S
from nvc.base.errors import InputError, UsageError
from nvc.base.gobool import FALSE, TRUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Values = dict[str, list[str]]

PROGRAM = "nvc-cdi-hook"
#: NVIDIA's names of this program.
CDI_HOOK, CTK = "nvidia-cdi-hook", "nvidia-ctk"
THEIRS = (CDI_HOOK, CTK)
#: Their switches, which take no value, and the variables that stand in for the first.
_SWITCHES = ("debug", "d", "quiet")
DEBUG_VARIABLES = ("NVIDIA_CTK_DEBUG", "NVIDIA_CDI_DEBUG")
#: Between two hooks of one start.
THEN = "then"
MEMORY = bundle.MEMORY_HOOK
#: How the names of hooks begin that must not be left out: what they apply to the container would be missing.
_APPLY = "apply-"
TIMEOUT = TIMEOUT_S
COMPAT = "/usr/local/cuda/compat"
COMMON = (
    ("debug", "FILE", "write what is done to FILE"),
    ("timeout", "SECONDS", f"limit of every wait, {TIMEOUT:g} when not given"),
)
#: Name -> what it does, and its options: name, value, meaning.
HOOKS: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "create-symlinks": ("make links", (("link", "TEXT::PATH", "make the link PATH to TEXT; may be repeated"),)),
    "update-ldcache": (
        "make the loader find libraries",
        (
            ("folder", "DIR", "a directory with libraries; may be repeated"),
            ("ldconfig-path", "FILE", "the host's ldconfig"),
        ),
    ),
    "enable-cuda-compat": (
        "prefer the image's CUDA compat libraries where they fit the driver",
        (
            ("host-driver-version", "VERSION", "of the driver on the host"),
            ("host-cuda-version", "VERSION", "of CUDA in that driver"),
            ("cuda-compat-container-root", "DIR", f"where the image has them, {COMPAT} when not given"),
        ),
    ),
    "disable-device-node-modification": (
        "tell the driver's libraries to leave device nodes alone",
        (("sim", "DIR", "use the simulated machine in DIR"),),
    ),
    "update-application-profile": ("show graphics programs the container's GPUs", ()),
    "share": (
        "limit the container to a share of its GPUs, as its annotation nvc.share, its variables or the node say",
        (
            ("share", "SPEC", "what the container gets, such as mem=10Gi,cap=50%, before what it asks for itself"),
            ("share-fixed", "SPEC", "the same, and final: each hook of a container may name its own GPU by UUID"),
            ("config", "FILE", "the node's rules, in place of /etc/nvc/config.toml"),
            ("sim", "DIR", "use the simulated machine in DIR"),
            ("root", "PATH", "the driver is below PATH"),
        ),
    ),
    MEMORY: (
        "limit the container to the memory that its variable NVIDIA_GPU_MEMORY_LIMIT says (stage createRuntime)",
        (
            ("gpu-id", "UUID", "a GPU that is limited; may be repeated"),
            ("driver-root", "DIR", "the driver is below DIR"),
            ("container-spec", "-", "the state is on standard input, where it always is"),
            ("config", "FILE", "the node's rules, in place of /etc/nvc/config.toml"),
            ("sim", "DIR", "use the simulated machine in DIR"),
        ),
    ),
    "chmod": (
        "change the mode of directories that an engine made",
        (("mode", "OCTAL", "permission bits"), ("path", "DIR", "a directory; may be repeated")),
    ),
    "noop": ("do nothing", ()),
}
#: Names a file with the container's state in NVIDIA's program.
STATE = "container-spec"
_REPEATABLE = ("link", "folder", "path", "gpu-id")


def usage(program: str = PROGRAM) -> str:
    """The help text."""
    lines = []
    for name, (summary, options) in HOOKS.items():
        lines.append(f"  {name}\n      {summary}")
        lines += [f"      --{option} {value}".ljust(44) + text for option, value, text in options]
    lines += ["", "Every hook takes:"]
    lines += [f"      --{option} {value}".ljust(44) + text for option, value, text in COMMON]
    return (
        f"Usage: {program}{' hook' if program == CTK else ''} NAME [OPTION...] [{THEN} NAME [OPTION...]]... < STATE\n\n"
        "Hooks of CDI specs. The OCI runtime starts them at createContainer and writes the container's state to their\n"
        "standard input; `nvc-py cdi generate` writes specs that name them.\n\n" + "\n".join(lines) + "\n"
    )


def split(argv: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in argv:
        if word == THEN:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def switches(argv: Sequence[str]) -> tuple[list[str], str]:
    """The words without their program's switches, and where to write what is done. Raises UsageError."""
    rest, debug = [], ""
    for word in argv:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in _SWITCHES:
            rest.append(word)
            continue
        if equals and value not in TRUE + FALSE:
            raise UsageError(f'invalid value "{value}" for flag -{name}: parse error')
        if name != "quiet":
            debug = "/dev/stderr" if not equals or value in TRUE else ""
    return rest, debug


def read(words: list[str], *, theirs: bool = False) -> tuple[str, Values]:
    """(name, values of its options); ("", {}) for a hook that may be left out. Raises UsageError, InputError.

    theirs: the words are read as NVIDIA's program reads them.
    """
    words = words[1:] if words[:1] == [bundle.CTK_HOOK] else words
    name = words[0] if words else ""
    if name not in HOOKS:
        # Also behind words that we do not know, such as another program's global options.
        applied = next((word for word in words if _is_applied(word.strip().lower().replace("_", "-"))), None)
        if applied is not None:
            raise InputError(
                f"unknown hook {applied!r}: the container would be without what it applies",
                hint="upgrade nvc-py, or leave the hook out of the CDI specification (--disable-hook)",
            )
        # A spec may be newer than we are; a container without the newest hook is better than none.
        from hook.report import write

        hint = near(name, HOOKS)
        write(2, f"{PROGRAM}: warning: unknown hook {name!r} is left out{f' ({hint})' if hint else ''}\n")
        return "", {}
    known = {option for option, _, _ in (*HOOKS[name][1], *COMMON)} | ({STATE} if theirs else set())
    values: Values = {}
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        option, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or option not in known:
            hint = near(option, known, shown="--{}") if word.startswith("-") else ""
            raise UsageError(f"{name}: unexpected {word!r}", hint=hint)
        if not equals:
            if not rest:
                raise UsageError(f"{name}: --{option} needs a value")
            value = rest.pop(0)
        if "\0" in value:
            raise UsageError(f"{name}: --{option} contains a NUL character")
        if option in values and option not in _REPEATABLE and not theirs:
            raise UsageError(f"{name}: --{option} twice")
        several = theirs and option in _REPEATABLE
        values.setdefault(option, []).extend(value.split(",") if several else [value])
    return name, values


def _is_applied(name: str) -> bool:
    return name.startswith(_APPLY) or name == bundle.SHARE_HOOK
