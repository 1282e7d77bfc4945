"""What a client asks of the pre-fork servers: the packet of native/client/client.h, decoded, and whether it is for us.

Only ``configure --pid``, the hook's stages outside of the container, hooks of CDI specs and nvc-runtime's edit are:
there the identity of the process that does the work shows in nothing. Everything else, every mistake on the command
line and everything unusual goes to the Python program, which costs its caller a start and nothing more.
"""

from __future__ import annotations

import os
import struct
import sys

from nvc.base.errors import NvcError
from nvc.base.record import Record
from nvc.cli import options
from nvc.cli.compat import configure
from nvc.cli.compat.getopt import ArgumentError, parse
from nvc.cli.main import completion_variable, program_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nvc.base.log import Log

    Hooks = Callable[[Sequence[str], bytes, Log], None]

#: client.h: struct request_header, and its limits.
_HEADER = struct.Struct("=8sIIII4Q")
_MAGIC = b"nvcrun1\0"
LIMIT = 96 * 1024
DESCRIPTORS = 4

CONFIGURE = ("nvc-py", "nvidia-container-cli")
HOOK = ("nvc-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit")
#: Started in a container's mount namespace, in which its work is done.
CDI = ("nvc-cdi-hook",)
#: Wait for their container's config.json to be edited, then become the real runtime.
RUNTIME = ("nvc-runtime", "nvidia-container-runtime")
#: Their caller's process, and what it is an ancestor or child of, matters to the work.
KNOWN = CDI + RUNTIME
#: What these name is another thing in another process.
_OWN = ("/proc/self", "/proc/thread-self", "/dev/fd", "/dev/tty")


class Refused(Exception):
    """Not for the pre-fork servers; the text is for readers of the code."""


class Programs(Record):
    """What runs a program on this process's ``sys.argv`` and returns its exit code.

    outside: whether words ask for a hook's stage outside of the container; raises NvcError for a mistake.
    inside: whether words of CDI's hook ask for what is done in the container's mount namespace.
    keep: tells the hook, which closes what it inherited, of descriptors that are to stay. hooks: runs hooks of CDI
    specs in the container's mount namespace, by the words of their command line, the container's state and a log.
    """

    configure: Callable[[], int]
    hook: Callable[[], int]
    cdi: Callable[[], int]
    runtime: Callable[[], int]
    outside: Callable[[Sequence[str], str], bool]
    inside: Callable[[Sequence[str]], bool]
    keep: Callable[[Iterable[int]], None]
    hooks: Hooks


class Request(Record):
    """program: one of CONFIGURE, HOOK, CDI or RUNTIME. mask: umask. stamp: of the client's installation (``stamp_of``).

    The descriptors that came with it are apart: their holder closes them.
    """

    program: str
    words: tuple[str, ...]
    environment: dict[str, str]
    mask: int
    stamp: tuple[int, ...]


def stamp_of(library: str) -> tuple[int, ...]:
    """What tells one installation, and one version of it, from another (native/client/request.c). Raises OSError."""
    found = os.stat(f"{library}/nvc/__init__.py")
    return found.st_dev, found.st_ino, *divmod(found.st_ctime_ns, 10**9)


def decode(packet: bytes) -> Request:
    """The request of a packet. Raises Refused."""
    if not _HEADER.size < len(packet) <= LIMIT or packet[-1:] != b"\0":
        raise Refused(f"a request of {len(packet)} bytes")
    magic, words, variables, mask, zero, *stamp = _HEADER.unpack_from(packet)
    texts = packet[_HEADER.size : -1].split(b"\0")
    if magic != _MAGIC or zero or mask > 0o7777 or len(texts) != 1 + words + variables:
        raise Refused("a request of another version")
    program, *rest = (text.decode(sys.getfilesystemencoding(), "surrogateescape") for text in texts)
    environment: dict[str, str] = {}
    for text in rest[words:]:
        name, equals, value = text.partition("=")
        if name and equals:
            environment.setdefault(name, value)  # as Python and getenv(3): the first counts
    return Request(program, tuple(rest[:words]), environment, mask, tuple(stamp))


def check(request: Request, programs: Programs) -> None:
    """Raises Refused when the Python program must do it."""
    if request.program not in CONFIGURE + HOOK + CDI + RUNTIME:
        raise Refused(f"program {request.program[:40]!r}")
    _check_environment(request.environment, is_edit=request.program in RUNTIME)
    texts = [*request.words, *(value for name, value in request.environment.items() if name.startswith("NVC_"))]
    if any(own in text for text in texts for own in _OWN):
        raise Refused("a file that is the caller's own")
    try:
        if request.program in CONFIGURE:
            _check_configure(request)
        elif request.program in CDI:
            if request.environment or not programs.inside(request.words):
                raise Refused("a hook for another stage, or with variables")
        elif request.program in HOOK and not programs.outside(request.words, request.program):
            raise Refused("a stage inside of the container, or none")
    except (ArgumentError, NvcError):
        raise Refused("a command line with a mistake") from None


def _check_configure(request: Request) -> None:
    name = program_name(request.program)
    if completion_variable(name) in request.environment:
        raise Refused("completion")
    parsed = parse(name, request.words, options.GLOBAL, in_order=True)
    if parsed.action or parsed.rest[:1] != ["configure"]:
        raise Refused("another command")
    rows, operands = options.COMMANDS["configure"]
    chosen = parse(f"{name} configure", parsed.rest[1:], rows, in_order=False)
    if chosen.action or len(chosen.operands) != len(operands):
        raise Refused("not to configure a container")
    if configure.read(chosen).pid is None:
        # It means the caller's own namespaces and cgroup.
        raise Refused("standalone")


def _check_environment(environment: dict[str, str], *, is_edit: bool) -> None:
    """What the loader, the libc or Python take from the environment when a program starts has no effect later.

    is_edit: of nvc-runtime, which edits a file; the runtime that its caller becomes has the variables.
    """
    for name in environment:
        if not is_edit and (name.startswith("LD_") or name == "GLIBC_TUNABLES"):
            raise Refused(f"{name} is set")
    locale = next((environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), "C")
    if locale not in ("C", "POSIX") and not locale.lower().replace("-", "").endswith("utf8"):
        raise Refused("another character set")
