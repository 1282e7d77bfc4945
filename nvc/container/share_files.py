"""Make the files of a share on this machine: the store's entry, with the container's /etc/ld.so.preload in it.

Runs in the container service, on the host's side, before the container is touched. The image's own file is read below
the container's root and never out of it; what is wrong with it fails the container, because its programs would run
without their limits.
"""

from __future__ import annotations

import errno
import os
import time

from nvc.base.errors import ContainerError, MountError, NvcError, reason
from nvc.container.lookup import open_root
from nvc.linux.syscalls import SyscallError
from nvc.share import admission, place, preload, store
from nvc.share.joined import joined
from nvc.share.store import StoredShare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.base.log import Log
    from nvc.base.undo import Undo
    from nvc.container.lookup import Located
    from nvc.container.operations import ShareFiles
    from nvc.linux.root import Root
    from nvc.share.limits import Limits

_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_LOADERS = ("/lib64", "/lib", "/usr/lib64", "/usr/lib")


def make(operation: ShareFiles, located: Located, undo: Undo, log: Log) -> bool:
    """Make the entry, or add to the limits of the one that this very container has; False when they were so already.

    Entries of containers that have ended go, where no agent removes them. Raises MountError, ContainerError,
    PrivilegeError.
    """
    image = _image(located, log)
    record = _record(operation, located)
    try:
        for key in store.clean(operation.store) if not operation.agent else ():
            log.info(f"share: removed what {key} left")
        found = _same(operation, record)
        if found is not None:
            with found:
                return _change(found, operation, undo, log)
        # Before it is made: a signal in the middle leaves nothing.
        undo.push(lambda: store.remove(record.key, operation.store, only=lambda found: found == record))
        text = preload.text(image, operation.lines)
        store.create(
            record,
            operation.limits,
            text,
            directory=operation.store,
            admit=lambda: _admit(operation, record, operation.limits),
        )
    except ValueError as error:
        raise ContainerError(f"share: {error}") from error
    except OSError as error:
        raise _failure(operation, error) from error
    return True


def _same(operation: ShareFiles, record: StoredShare) -> store.Entry | None:
    """The entry that this very container has: it was configured a second time."""
    if not record.pid:
        return None
    found = store.entry(operation.key, operation.store)
    if found is not None:
        theirs = found.record
        if (theirs.pid, theirs.start_time) == (record.pid, record.start_time):
            return found
        found.close()
    return None


def _change(entry: store.Entry, operation: ShareFiles, undo: Undo, log: Log) -> bool:
    """Another step of the same start: what an earlier one limits stays limited (``nvc.share.joined``)."""
    if entry.record.group != operation.group:
        raise ContainerError(
            f"share: {operation.key} has group {entry.record.group or 'none'} by an earlier step of its start, and "
            f"{operation.group or 'none'} by this one",
            hint="name the group in the fixed settings of every hook, or of one that the container's config.json has",
        )
    entry.lock()
    old = entry.limits()
    new = joined(old, operation.limits)
    if _gpus(new) != _gpus(operation.limits):
        log.info(f"share: {operation.key} keeps what an earlier step of its start limits, and where that is tighter")
    if new.replace(gpus=()) == old.replace(gpus=()) and _gpus(new) == _gpus(old):
        return False
    with store.Locked(operation.store):
        _admit(operation, entry.record, new, old)
        entry.change(new)
    undo.push(_put_back, operation.store, entry.record, old)
    return True


def _admit(operation: ShareFiles, record: StoredShare, wanted: Limits, before: Limits | None = None) -> None:
    """While no other entry comes. Raises ContainerError where its requests do not fit."""
    if operation.rooms and not (operation.agent and _is_admitted(operation, record, wanted)):
        admission.check(operation.rooms, wanted, admission.others(record, operation.store), before)


def _is_admitted(operation: ShareFiles, record: StoredShare, wanted: Limits) -> bool:
    """Whether the agent says that it fits: all others' entries need not be read for it."""
    from nvc.share import fits

    found = os.stat(operation.store)
    own = admission.owner_of(record)
    return fits.ask(operation.agent, fits.Question(found.st_dev, found.st_ino, own, operation.rooms, wanted.gpus))


def _gpus(limits: Limits) -> list[object]:
    # The file does not hold minor numbers.
    return [gpu.replace(minor=0) for gpu in limits.gpus]


def _put_back(directory: str, record: StoredShare, old: Limits) -> None:
    """Undo: only what is this container's."""
    found = store.entry(record.key, directory)
    if found is not None:
        with found:
            if found.record == record:
                found.lock()
                found.change(old)


def _failure(operation: ShareFiles, error: OSError) -> NvcError:
    hint = ""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
        hint = (
            "shares are kept there: the hook must run as root at prestart or createRuntime; a rootless engine needs a "
            "login session (loginctl enable-linger)"
        )
    return MountError(f"share: {operation.store}/{operation.key} cannot be made: {reason(error)}", hint=hint)


def _record(operation: ShareFiles, located: Located) -> StoredShare:
    container = located.container
    pid = place.first_process(container)
    namespace = 0
    if pid:
        try:
            namespace = os.stat(f"/proc/{pid}/ns/mnt").st_ino
        except OSError:
            pid = 0
    return StoredShare(
        operation.key,
        operation.container,
        pid,
        store.start_time(pid) if pid else 0,
        namespace,
        container.rootfs,
        when=int(time.time()),
        text=operation.text,
        source=operation.source,
        group=operation.group,
        name=operation.name,
    )


def _image(located: Located, log: Log) -> bytes:
    """The image's own file; nothing where it has none. Raises MountError for what no loader should read."""
    with open_root(located) as root:
        path = root.path.rstrip("/") + preload.FILE
        try:
            content = root.read(preload.FILE, preload.LIMIT)
        except SyscallError as error:
            if error.errno not in _ABSENT:
                raise MountError(f"path error: {path}: {_why(error)}", hint=_hint(error)) from error
            content = b""
        if log.enabled:
            log.info(f"share: {_loader(root)}; the image's {preload.FILE} has {len(preload.entries(content))} entries")
    return content


def _why(error: OSError) -> str:
    if error.errno == errno.EFBIG:
        return f"larger than {preload.LIMIT >> 10} KiB"
    return "not a regular file" if error.errno == errno.EINVAL else reason(error)


def _hint(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "the image's links lead in a circle, or through a magic link of /proc"
    return "a share adds its library to this file: make it a small file of the image, or remove it"


def _loader(root: Root) -> str:
    """What will read the file, for the log."""
    found = set()
    for directory in _LOADERS:
        try:
            names = root.list_directory(directory)
        except OSError:
            continue
        found |= {kind for kind in ("ld-linux", "ld-musl") for name in names if name.startswith(kind)}
    if "ld-linux" in found:
        return "the image has glibc's loader"
    if "ld-musl" in found:
        return "the image has musl's loader, which preloads nothing from a file: its programs have no limits"
    return "the image has no loader: static programs have no limits"
