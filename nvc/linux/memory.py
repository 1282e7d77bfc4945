"""The memory of this process: its mappings, what is private, page faults in advance."""

from __future__ import annotations

import errno
import os

from nvc.linux import const, syscalls
from nvc.linux.syscalls import SyscallError

#: Larger mappings are reserved address space rather than used memory.
_LARGEST = 16 << 20
#: Left alone: the kernel's own, and the stack, which grows.
SKIPPED = ("[vvar", "[vdso]", "[vsyscall]", "[stack]")


def mappings() -> list[tuple[int, int, str, str]]:
    """Of this process: first address, the one behind the last, "rwxp", name or "". Raises OSError without /proc."""
    with open("/proc/self/maps", "rb", buffering=0) as file:
        text = b"".join(iter(lambda: file.read(1 << 16), b""))
    found = []
    for line in filter(None, text.split(b"\n")):
        fields = line.split(None, 5)
        start, end = (int(number, 16) for number in fields[0].split(b"-"))
        found.append((start, end, fields[1].decode(), os.fsdecode(fields[5]) if len(fields) > 5 else ""))
    return found


def private_bytes() -> int:
    """Bytes of this process that RLIMIT_DATA counts (VmData of proc_pid_status(5)); 0 where /proc does not say."""
    try:
        with open("/proc/self/status", "rb", buffering=0) as file:
            text = file.read(1 << 16)
    except OSError:
        return 0
    row = text.partition(b"\nVmData:")[2].split(None, 1)
    return int(row[0]) << 10 if row else 0


def prefault() -> None:
    """Populate every private mapping: writable pages are copied, read-only ones mapped.

    A fork shares its parent's pages and pays a fault for each that it touches. To be called before a request arrives.
    Does nothing on kernels before 5.14, or without /proc.
    """
    try:
        found = mappings()
    except OSError:
        return
    for start, end, access, name in found:
        if access[3] != "p" or access[0] != "r" or end - start > _LARGEST or name.startswith(SKIPPED):
            continue
        try:
            advice = const.MADV_POPULATE_WRITE if access[1] == "w" else const.MADV_POPULATE_READ
            syscalls.madvise(start, end - start, advice)
        except SyscallError as error:
            if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                return
            # The mapping was just removed, or has no page there (EFAULT, ENOMEM): the next one.
