"""The pages of this process: faults before somebody waits for them, and what of it can go."""

from __future__ import annotations

import errno
import os

from nvc.linux import const, syscalls
from nvc.linux.syscalls import SyscallError

#: Nothing of ours is larger; what is was reserved rather than used.
_LARGEST = 16 << 20
#: Not for us to touch: the kernel's own, and the stack, which grows.
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


def settle() -> None:
    """Have every page that this process inherited be its own, or at hand where it is only read.

    A fork shares its parent's pages, and pays a fault for each that it touches. To be called where nobody waits. Does
    nothing on kernels before 5.14, or without /proc.
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
            # A mapping that has just gone, or has no page there (EFAULT, ENOMEM): the next one.
