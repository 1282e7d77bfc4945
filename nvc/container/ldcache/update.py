"""Update a container's loader cache: the host's ldconfig, in memory, in a sandbox (libnvidia-container.md 7).

Nothing of the image is executed and nothing of the host can be reached: not the program's file (a sealed copy runs),
not the host's network, processes, devices or file system. What ldconfig prints goes to the debug log.
"""

from __future__ import annotations

import errno
import stat

from nvc.base.budgets import LDCONFIG
from nvc.base.errors import LdcacheError, escaped, reason
from nvc.container.ldcache import process
from nvc.container.ldcache.aside import CACHE, SAMPLE
from nvc.container.ldcache.snapshot import TABLE_FILES, Snapshot
from nvc.linux import mounts, rights
from nvc.linux.fd import Fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.container.execute import Place
    from nvc.container.ldcache.process import Launched
    from nvc.container.operations import UpdateLdcache

_CONFIGURATION = "/etc/ld.so.conf"
#: What ldconfig opens whatever it is.
OPENED = (_CONFIGURATION, *TABLE_FILES)
#: What the reference's users saw as bare numbers: resource limits, the filter, memory (section 7.3).
_SIGNALS = {
    9: f"it was killed: out of memory, or more than {LDCONFIG.cpu} s of processor time",
    11: "it crashed, perhaps out of address space",
    25: "the cache would be larger than is allowed",
    31: "it made a system call that the sandbox does not allow",
}
_HINTS = {
    errno.EROFS: "the container's file system is read-only: let the engine make it so after its hooks (root.readonly)",
    errno.ENOSPC: "the container's file system is full",
}


def launch(operation: UpdateLdcache, place: Place, program: Fd) -> Launched:
    """Start the process that will be ldconfig. Raises LdcacheError; the caller closes the result in any case."""
    rights.use("ldcache")
    try:
        launched = process.take(_arguments(operation, SAMPLE)) if not operation.no_pivot else None
        root = None if mounts.modern() else place.root.fd
        return launched or process.start(program, root=root, no_pivot=operation.no_pivot)
    except OSError as error:
        raise _not_started(operation, error) from error
    finally:
        rights.use("mount")


def remember(operation: UpdateLdcache, place: Place) -> None:
    """Before anything else is changed: note what ldconfig may change, and refuse an image that it would wait for.

    What is put back goes last, as it takes longest. Raises LdcacheError.
    """
    _check_kinds(place)
    try:
        place.snapshot = Snapshot(place.root, operation.directories, (place.uid, place.gid))
    except OSError as error:
        raise LdcacheError(f"{place.root.path}{CACHE} cannot be read: {reason(error)}") from error
    place.undo.push(place.snapshot.restore)
    place.snapshot.begin()
    place.root.is_shared = place.snapshot.is_shared


def begin(operation: UpdateLdcache, place: Place, launched: Launched, program: Fd) -> None:
    """Have it rebuild the cache, aside; ``finish`` waits. Raises LdcacheError."""
    owner = place.uid, place.gid
    assert place.snapshot is not None
    try:
        cache = place.snapshot.complete(place.root, operation.directories, place.undo)
    except OSError as error:
        raise LdcacheError(
            f"{place.root.path}{CACHE} cannot be made: {reason(error)}", hint=_HINTS.get(error.errno or 0, "")
        ) from error
    try:
        launched.go(program, _arguments(operation, cache), owner, place.root.fd if mounts.modern() else None)
    except OSError as error:
        raise _not_started(operation, error) from error


def finish(operation: UpdateLdcache, place: Place, launched: Launched) -> bool:
    """Wait for what ``begin`` began. True; failures raise LdcacheError, and what it did is put back by ``undo``."""
    rights.use("ldcache")
    try:
        status, output, report = launched.finish(operation.limit)
    except TimeoutError as error:
        raise LdcacheError(
            f"process {operation.ldconfig} did not end within {operation.limit:g} s",
            hint="a file system of the container does not answer; allow more with --timeout SECONDS",
        ) from error
    except OSError as error:
        raise _not_started(operation, error) from error
    finally:
        rights.use("mount")
    lines = output.decode("utf-8", "replace").splitlines()
    for line in lines:
        place.log.warn(line)
    if report:
        raise LdcacheError(report, hint="the sandbox for ldconfig needs mount, pid, net, ipc and uts namespaces")
    if status != 0:
        raise _failure(operation.ldconfig, status, lines)
    return True


def publish(place: Place) -> None:
    """Put what was made in the cache's place, if one was made: the last step, as it cannot be taken back.

    Raises LdcacheError.
    """
    snapshot, place.snapshot = place.snapshot, None
    if snapshot is not None:
        snapshot.publish()


def _check_kinds(place: Place) -> None:
    """Refuse what ldconfig would wait for; what else is no file it passes over."""
    for path in OPENED:
        try:
            mode = place.root.stat(path).st_mode
        except OSError:
            continue
        if stat.S_ISFIFO(mode):
            raise LdcacheError(f"{place.root.path}{path} is a FIFO", hint="make it a file of the image, or remove it")


def _arguments(operation: UpdateLdcache, cache: str) -> tuple[str, ...]:
    return (operation.ldconfig, "-f", _CONFIGURATION, "-C", cache, *operation.directories)


def _not_started(operation: UpdateLdcache, error: OSError) -> LdcacheError:
    return LdcacheError(f"process {operation.ldconfig} could not be started: {error}")


def _failure(path: str, status: int, lines: list[str]) -> LdcacheError:
    if status < 0:
        return LdcacheError(f"process {path} terminated with signal {-status}", hint=_SIGNALS.get(-status, ""))
    text = " ".join(lines)
    if "Read-only file system" in text:
        hint = _HINTS[errno.EROFS]
    elif "No space left" in text:
        hint = _HINTS[errno.ENOSPC]
    elif "memory exhausted" in text or "Cannot allocate memory" in text:
        hint = f"it may have {LDCONFIG.memory >> 20} MiB of memory: what the image has in {_CONFIGURATION} takes more"
    else:
        hint = " ".join(map(escaped, lines[-1].split())) if lines else ""
    return LdcacheError(f"process {path} failed with error code: {status}", hint=hint)
