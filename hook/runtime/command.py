"""The command line of an OCI runtime, as much of it as has to be understood to wrap one. Pure.

Everything is passed on unchanged. runc (urfave/cli), crun (argp) and youki (clap) are read with one grammar: options
with one or two dashes, values behind "=" or in the next word.
"""

from __future__ import annotations

from nvc.base.errors import UsageError
from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Commands before which the container does not exist and after which its config.json has been read.
RESTORE = "restore"
EDITED = ("create", "run", RESTORE)
CHECKPOINT = "checkpoint"
#: The command that starts a process in a container that is there.
EXECUTE = "exec"
_COMMANDS = frozenset(
    """checkpoint create delete events exec features init kill list pause ps restore resume run spec start state update
    help version completion info mounts""".split()  # noqa: SIM905
)
#: Options of the commands in EDITED and of CHECKPOINT that take a value, of any runtime.
_VALUED_AFTER = frozenset(
    """b bundle console-socket pid-file preserve-fds config f image-path work-path parent-path page-server status-fd
    manage-cgroups-mode network-lock lsm-profile lsm-mount-context""".split()  # noqa: SIM905
)
#: The same of EXECUTE, before the container's id.
_VALUED_EXECUTE = frozenset(
    """console-socket pid-file preserve-fds cwd env e user u additional-gids g process p process-label apparmor cap c
    cgroup""".split()  # noqa: SIM905
)
#: Options before the command that take a value, of any runtime.
_VALUED = frozenset("log log-format log-level root criu rootless cgroup-manager l r".split())  # noqa: SIM905


class Command(Record):
    """name: the command, "" when there is none. bundle: as given, "" for the working directory. container: the id of
    the container that is made, checkpointed or joined, "" where none is named. options: the words before the command.
    root: the runtime's directory for its state, "" for the usual one.

    log, log_format, debug: where and how the caller wants failures reported. version: --version was given.
    """

    name: str = ""
    bundle: str = ""
    container: str = ""
    root: str = ""
    log: str = ""
    log_format: str = "text"
    debug: bool = False
    version: bool = False
    options: tuple[str, ...] = ()

    @property
    def edits(self) -> bool:
        """Whether this makes a container."""
        return self.name in EDITED

    @property
    def executes(self) -> bool:
        """Whether this starts a process in a container."""
        return self.name == EXECUTE


def parse(argv: Sequence[str]) -> Command:
    """Raises UsageError for a --bundle without a value."""
    given: dict[str, str] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if name in _VALUED and not equals and words:
            value = words.pop(0)
        given[name] = value
    name, options = words[0] if words else "", tuple(argv[: len(argv) - len(words)])
    if name and name not in _COMMANDS:
        # An option that is not known here took a value; look for the command as the toolkit does.
        name = next((word for before, word in zip(["", *words], words, strict=False)
                     if word in (*EDITED, EXECUTE) and before not in ("-b", "--bundle", "-bundle")), name)  # fmt: skip
    if name == EXECUTE:
        words = words[words.index(EXECUTE) :]
    valued = _VALUED_EXECUTE if name == EXECUTE else _VALUED_AFTER if name in (*EDITED, CHECKPOINT) else None
    return Command(
        name=name,
        bundle=_bundle(words) if name in EDITED else "",
        container=_container(words, valued) if valued else "",
        root=given.get("root", ""),
        log=given.get("log", given.get("l", "")),
        log_format=given.get("log-format", "text"),
        debug="debug" in given and given["debug"] != "false",
        version="version" in given or "v" in given,
        options=options,
    )


def _container(words: list[str], valued: frozenset[str]) -> str:
    """The last word that is no option: engines put the id there, and runc takes it nowhere else. The first one of
    EXECUTE, as a program's words follow.
    """
    found = ""
    skip = True  # the command itself
    for word in words:
        if skip:
            skip = False
        elif word.startswith("-") and word != "-":
            name, equals, _ = word.lstrip("-").partition("=")
            skip = not equals and name in valued
        elif valued is _VALUED_EXECUTE:
            return word
        else:
            found = word
    return found


def _bundle(words: list[str]) -> str:
    found = ""
    for index, word in enumerate(words):
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in ("b", "bundle"):
            continue
        if not equals:
            if index + 1 == len(words):
                raise UsageError(f"option {word} needs a value: the bundle's directory")
            value = words[index + 1]
        found = value
    return found
