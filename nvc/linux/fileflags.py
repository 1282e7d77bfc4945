"""Flags that keep a file from being removed (chattr +i, +a): a container with CAP_LINUX_IMMUTABLE can set them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

from nvc.linux import const

_FLAGS = struct.Struct("@l")
_KEEP = const.FS_IMMUTABLE_FL | const.FS_APPEND_FL
#: Opening must not wait, whatever was put in the file's place.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def unlink(directory: int, name: str) -> None:
    """Remove ``name`` below ``directory``, a regular file also where a flag keeps it. Raises OSError."""
    try:
        os.unlink(name, dir_fd=directory)
    except PermissionError:
        if not _is_cleared(directory, name):
            raise
        os.unlink(name, dir_fd=directory)


def _is_cleared(directory: int, name: str) -> bool:
    """Whether a regular file had such flags and has none any more. Raises OSError."""
    # Looked at first: opening a device does something.
    if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return False
    descriptor = os.open(name, _OPEN, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        answer = fcntl.ioctl(descriptor, const.FS_IOC_GETFLAGS, bytes(_FLAGS.size))
        # The kernel reads and writes an int, whatever the number of the call says.
        (flags,) = struct.unpack_from("=I", answer)
        if not flags & _KEEP:
            return False
        fcntl.ioctl(descriptor, const.FS_IOC_SETFLAGS, _FLAGS.pack(flags & ~_KEEP))
        return True
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP):  # a file system without flags
            return False
        raise
    finally:
        os.close(descriptor)
