"""The one way to managed memory that a guarded container's own filter cannot see is closed before the runtime starts.

The first mmap of the 32-bit entry (number 90 there) has its arguments in memory, and an OCI profile has no rule for one
architecture alone. So a second filter, which whatever is executed from here inherits, answers that call with ENOSYS.
C libraries have used mmap2 since Linux 2.4; 32-bit programs run as before. Sources: syscall_32.tbl (arch/x86/entry),
seccomp(2): filters are preserved across execve.
"""

from __future__ import annotations

import os

from nvc.base.errors import NvcError
from nvc.linux import seccomp, syscalls

_OLD_MMAP = 90  # __NR_mmap of i386


def program() -> bytes:
    """struct sock_filter, one after another: the old mmap of i386 is ENOSYS, everything else is allowed. Pure."""
    return seccomp.assemble_without("i386", _OLD_MMAP)


def close() -> None:
    """For this process and all that it executes, for good. Raises NvcError where the kernel refuses the filter."""
    if os.uname().machine != "x86_64":
        return
    try:
        syscalls.seccomp_filter(program())
    except OSError as error:
        raise NvcError(
            f"guard: cannot close the 32-bit mmap to the container: {error.strerror or error}",
            hint="start it with CAP_SYS_ADMIN, as engines do, on a kernel with seccomp filters",
        ) from error
