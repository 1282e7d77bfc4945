"""The hook's command line: ``nvc-hook [OPTION...] STAGE``.

Called as nvidia-container-runtime-hook it takes that program's options, written with one dash or two; there
``-debug`` takes no value (nvidia-container-toolkit.md 1.1).
"""

from __future__ import annotations

from hook.state import IDLE, INSIDE, OUTSIDE
from nvc.base.budgets import TIMEOUT_S
from nvc.base.errors import UsageError
from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STAGES = OUTSIDE + INSIDE + IDLE
DEFAULT_TIMEOUT = TIMEOUT_S
#: Other names of this program, where ``--debug`` is a switch.
ALIASES = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
#: name, value shown in the help ("" for a switch), what it does
OPTIONS = (
    ("debug", "FILE", "write what is done to FILE"),
    ("config", "PATH", "configuration file, in place of /etc/nvc/config.toml (or else the toolkit's)"),
    ("sim", "DIR", "use the simulated machine in DIR (see nvc-py sim)"),
    ("share-fixed", "SPEC", "the container's share, whatever it asks for itself"),
    ("timeout", "SECONDS", f"limit of every wait, {DEFAULT_TIMEOUT:g} when not given"),
    ("version", "", "print the version and exit"),
    ("help", "", "print this text and exit"),
)


class Arguments(Record):
    """stage: one of STAGES, or "" with ``help`` or ``version``. Paths are as given; timeout in seconds."""

    stage: str = ""
    debug: str = ""
    config: str = ""
    sim: str = ""
    timeout: float = DEFAULT_TIMEOUT
    version: bool = False
    help: bool = False
    share_fixed: str = ""


def parse(argv: Sequence[str], program: str) -> Arguments:
    """Raises UsageError for an unknown option or stage, a missing value, and anything beside one stage."""
    given: dict[str, str | bool | float] = {}
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word != "-":
            name, value = _option(word, rest, program)
            given[name.replace("-", "_")] = value
        else:
            words.append(word)
    if given.get("help") or given.get("version"):
        return Arguments(help=bool(given.get("help")), version=bool(given.get("version")))
    if not words:
        raise UsageError("a stage is needed", hint=f"one of {', '.join(STAGES)}")
    if len(words) > 1:
        raise UsageError(f"unexpected argument {words[1]!r}")
    if words[0] not in STAGES:
        known = f"one of {', '.join(STAGES)}"
        raise UsageError(f"unknown stage {words[0]!r}", hint=near(words[0], STAGES, otherwise=known))
    return Arguments(stage=words[0], **given)  # type: ignore[arg-type]


def usage(program: str) -> str:
    """The help text."""
    rows = [(f"  --{name} {value}".rstrip(), text) for name, value, text in OPTIONS]
    width = max(len(left) for left, _ in rows) + 3
    return (
        f"Usage: {program} [OPTION...] STAGE < STATE\n\n"
        "OCI hook: gives a container that asks for NVIDIA GPUs what it needs to use them.\n"
        "The OCI runtime starts it and writes the container's state to its standard input.\n\n"
        f"Stages: {', '.join(OUTSIDE + INSIDE)}; {', '.join(IDLE)} do nothing.\n\n"
        "Options:\n" + "".join(f"{left:<{width}}{text}\n" for left, text in rows)
    )


def _option(word: str, rest: list[str], program: str) -> tuple[str, str | bool | float]:
    dashes = 2 if word.startswith("--") else 1
    name, equals, value = word[dashes:].partition("=")
    if name == "h":
        name = "help"
    kinds = {option: metavar for option, metavar, _ in OPTIONS}
    if name not in kinds:
        raise UsageError(f"unknown option {word!r}", hint=near(name, kinds, shown="--{}"))
    if name == "debug" and not equals and (dashes == 1 or program in ALIASES):
        return name, "/dev/stderr"
    if not kinds[name]:
        if equals:
            raise UsageError(f"option --{name} takes no value")
        return name, True
    if not equals:
        if not rest:
            raise UsageError(f"option --{name} needs a value: {kinds[name]}")
        value = rest.pop(0)
    if not value or "\0" in value:
        raise UsageError(f"option --{name} needs a value: {kinds[name]}")
    return name, seconds(value) if name == "timeout" else value


def near(word: str, known: Iterable[str], **form: str) -> str:
    """A hint: ``did_you_mean``, imported only for words that are wrong."""
    from nvc.base.nearest import did_you_mean

    return did_you_mean(word, known, **form)


def seconds(text: str) -> float:
    """The value of --timeout. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:  # also refuses nan
        raise UsageError(f"--timeout {text!r} is not a number of seconds between 0 and 3600")
    return value
