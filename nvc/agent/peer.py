"""The process at the other end of a unix socket, as the kernel noted when it connected."""

from __future__ import annotations

import array
import grp
import socket
import struct

from nvc.base.record import Record

#: include/uapi/asm-generic/socket.h, since 4.13; Python has no name for it.
_SO_PEERGROUPS = 59
#: Bytes for them, the most that Python's getsockopt takes: 256 groups.
_GROUPS = 1024


class Peer(Record):
    """pid: 0 when it is in a pid namespace that we cannot see. groups: all of them, the primary one too."""

    pid: int
    uid: int
    groups: tuple[int, ...]


def of(connection: socket.socket) -> Peer:
    """Raises OSError."""
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    groups = array.array("I")
    try:
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS))
    except OSError:
        pass  # more than there is room for: the primary one counts
    return Peer(pid, uid, (gid, *groups))


def group_id(name: str) -> int:
    """The number of a group, -1 when there is none of this name."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return -1
