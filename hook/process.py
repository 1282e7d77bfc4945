"""What the process inherits from a runtime, made harmless before anything else happens; and its messages.

A createContainer hook is started with the container's rootfs as its working directory and, when its entry has no
``env``, with the container's environment (measured: runc 1.1.5; CVE-2025-23266). Neither may choose what this process,
or a program that it starts, loads.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.errors import NvcError

#: Where programs of the host are searched when the runtime gave no PATH (runtimes give hooks an empty environment).
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Descriptors above are not looked at: without close_range(2) each number costs a call.
_DESCRIPTORS = 1 << 16
#: Descriptors that stay open: what a process that was forked in advance (``hook.warm``) talks to its helper with.
kept: set[int] = set()
_NULL = os.makedev(1, 3)  # Documentation/admin-guide/devices.txt
_ALLOWED = ("NVIDIA_CTK_CONFIG_FILE_PATH", "XDG_CONFIG_HOME", "CUDA_MPS_PIPE_DIRECTORY")


def sanitise(*, trusted: bool) -> str:
    """Clean environment, working directory, umask and descriptors 0 to 2; return the old working directory or "".

    trusted: the environment is the runtime's or the hook entry's own. In a createContainer hook it may be the
    container's, so nothing of it is kept, and its working directory (the rootfs) is not reported.
    """
    directory = _working_directory() if trusted else ""
    os.chdir("/")
    os.umask(0o022)
    for number in (0, 1, 2):
        _guard(number)
    for number in (1, 2):
        if not _is_for_readers(number):
            _replace(number)
    # runc leaves its own open (the socket to its parent, exec.fifo): nothing that we start shall have them.
    lowest = 3
    for number in _own_descriptors():
        os.closerange(lowest, number)
        lowest = number + 1
    os.closerange(lowest, _DESCRIPTORS)
    clean_environment(trusted=trusted)
    return directory


def clean_environment(*, trusted: bool) -> None:
    """That of this process. trusted: as in ``sanitise``."""
    environment = _kept(os.environ) if trusted else {"PATH": DEFAULT_PATH}
    for name in list(os.environ):
        try:
            del os.environ[name]
        except OSError:  # an entry without a name ("=x") cannot be removed, and no program can read it
            pass
    os.environ.update(environment)


def absolute(path: str, directory: str) -> str:
    """``path`` joined to ``directory``; "" stays "", and so does a relative path when ``directory`` is not known."""
    if not path or path.startswith("/"):
        return path
    return f"{directory}/{path}" if directory else ""


def fail(program: str, error: NvcError, debug: str) -> int:
    """``report.fail``, which is imported only now."""
    from hook import report

    return report.fail(program, error, debug)


def say(descriptor: int, text: str) -> None:
    """``report.write``, which is imported only now."""
    from hook import report

    report.write(descriptor, text)


def _kept(environment: os._Environ[str]) -> dict[str, str]:
    """An allow-list: LD_*, PYTHON*, GCONV_PATH, GLIBC_TUNABLES and whatever comes next are dropped unnamed."""
    kept = {name: value for name, value in environment.items() if name.startswith("NVC_") or name in _ALLOWED}
    path = environment.get("PATH", "")
    # A relative entry would be searched below a directory that we do not choose.
    good = bool(path) and all(part.startswith("/") for part in path.split(":"))
    kept["PATH"] = path if good else DEFAULT_PATH
    return kept


def _own_descriptors() -> list[int]:
    """Those that modules are still to be read from (``nvc.base.boot``), and ``kept``, ascending."""
    return sorted({*kept, *(finder.fileno() for finder in sys.meta_path if hasattr(finder, "fileno"))})


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed, or above our root
        return ""


def _guard(number: int) -> None:
    """Without this a file opened later could become stdin, stdout or stderr, and be written to by an error message."""
    try:
        os.fstat(number)
    except OSError:
        # Descriptors are checked in ascending order, so the lowest free one is ``number``.
        os.set_inheritable(os.open("/dev/null", os.O_RDWR), True)


def _is_for_readers(number: int) -> bool:
    """Whether what is written there gets into no file or device of the host.

    crun opens the file that an annotation names, as root, for the output of hooks (``hook.runtime.annotated``), and
    messages have words of the container. A pipe with a name is such a file too.
    """
    status = os.fstat(number)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFIFO:
        ends = os.pipe()
        here = os.fstat(ends[0]).st_dev
        for end in ends:
            os.close(end)
        return status.st_dev == here
    if kind == stat.S_IFCHR:
        return os.isatty(number) or status.st_rdev == _NULL
    return kind == stat.S_IFSOCK


def _replace(number: int) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, number)
    os.close(null)
