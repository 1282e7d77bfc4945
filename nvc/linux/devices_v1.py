"""Allows device nodes in a cgroup v1 devices hierarchy: a line in devices.allow for each."""

from __future__ import annotations

import errno
import os

from nvc.base.errors import MountError
from nvc.base.undo import Undo
from nvc.linux import syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_LIST_LIMIT = 1 << 20
#: Not "m": with it, the container could create the nodes of GPUs that were not selected.
_ACCESS = "rw"


def allow(cgroup: Fd, rules: Sequence[tuple[int, int]], undo: Undo) -> bool:
    """Let the cgroup's processes read and write ``rules``. False when nothing had to change.

    ``cgroup`` is its directory; ``undo`` takes away what was not there before. Raises MountError.
    """
    changed = False
    with Undo() as local:
        for major, minor in dict.fromkeys(rules):
            try:
                entries = _entries(cgroup)
                if _covered(entries, major, minor):
                    continue
                _write(cgroup, "devices.allow", f"c {major}:{minor} {_ACCESS}")
            except OSError as error:
                hint = "the parent cgroup does not allow this device itself" if error.errno == errno.EPERM else ""
                message = f"failed to add device rule c {major}:{minor} to {cgroup.name}: {error}"
                raise MountError(message, hint=hint) from error
            changed = True
            added = _added(entries, major, minor)
            if added:
                local.push(_write, cgroup.duplicate(), "devices.deny", f"c {major}:{minor} {added}")
        local.hand_over(undo)
    return changed


def parse(text: str) -> list[tuple[str, str, str, str]]:
    """The lines of devices.list as (type, major, minor, access). Raises ValueError for a line of another form."""
    entries = []
    for line in text.splitlines():
        kind, number, access = line.split()
        major, minor = number.split(":")
        entries.append((kind, major, minor, access))
    return entries


def _covered(entries: list[tuple[str, str, str, str]], major: int, minor: int) -> bool:
    """Whether the exceptions listed already allow reading and writing.

    A first line "a *:* rwm" says that all is allowed but for exceptions that the kernel does not list
    (devcgroup_seq_show() in security/device_cgroup.c): our node may be one of them, so it is written then.
    """
    held: set[str] = set()
    for kind, major_text, minor_text, access in entries:
        if kind == "c" and major_text in ("*", str(major)) and minor_text in ("*", str(minor)):
            held |= set(access)
    return set(_ACCESS) <= held


def _added(entries: list[tuple[str, str, str, str]], major: int, minor: int) -> str:
    """What undo must deny: the kernel changes the entry of exactly this number; wildcards stay as they are."""
    if any(kind == "a" for kind, *_ in entries):
        return ""  # whether it was denied before is unknown
    exact = "".join(access for *number, access in entries if number == ["c", str(major), str(minor)])
    return "".join(letter for letter in _ACCESS if letter not in exact)


def _entries(cgroup: Fd) -> list[tuple[str, str, str, str]]:
    with syscalls.openat(cgroup, "devices.list", os.O_RDONLY | os.O_NOFOLLOW) as file:
        data = b""
        while chunk := os.read(file.fileno(), 1 << 16):
            data += chunk
            if len(data) > _LIST_LIMIT:
                raise SyscallError(errno.EFBIG, "read", cgroup, "devices.list")
    try:
        return parse(data.decode())
    except ValueError as error:
        raise SyscallError(errno.EBADMSG, "read", cgroup, "devices.list") from error


def _write(cgroup: Fd, name: str, line: str) -> None:
    with syscalls.openat(cgroup, name, os.O_WRONLY | os.O_NOFOLLOW) as file:
        try:
            os.write(file.fileno(), line.encode())
        except OSError as error:
            raise SyscallError(error.errno or errno.EIO, "write", cgroup, name, line) from error
