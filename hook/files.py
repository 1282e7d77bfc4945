"""Reading files of other users, or that they name: never more than a limit, never waiting."""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.errors import InputError


def can_be_a_path(text: str) -> bool:
    """Whether the kernel can be asked for it: no NUL, and no half of a surrogate pair, which JSON can spell."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def read(name: str, limit: int) -> bytes:
    """The bytes of ``name``. limit: in bytes, whole MiB.

    Raises InputError when it is missing, unreadable, not a regular file, or larger.
    """
    try:
        # O_NONBLOCK: opening a FIFO in its place must not wait for a writer.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        hint = "the hook must be able to read it" if error.errno in (errno.EACCES, errno.EPERM) else ""
        raise InputError(f"{name}: {error.strerror}", hint=hint) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(f"{name}: not a regular file")
        chunks: list[bytes] = []
        size = 0
        while chunk := os.read(descriptor, min(1 << 20, limit + 1 - size)):
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise InputError(f"{name}: larger than {limit >> 20} MiB")
        return b"".join(chunks)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror}") from error
    finally:
        os.close(descriptor)
