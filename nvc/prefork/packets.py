"""Packets of clients and for them, and what comes with them."""

from __future__ import annotations

import array
import os
import socket

#: Room for 16 descriptors, and the sender's credentials.
ANCILLARY = socket.CMSG_SPACE(16 * 4) + socket.CMSG_SPACE(12)


def received(ancillary: list[tuple[int, int, bytes]]) -> tuple[list[int], bytes]:
    """Descriptors and credentials that came with a packet."""
    found, credentials = array.array("i"), b""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            credentials = data
    return list(found), credentials


def send(connection: socket.socket, packet: bytes) -> bool:
    """Whether a client has it. Nothing is waited for."""
    try:
        connection.send(packet, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def is_waiting(connection: socket.socket) -> bool:
    """Whether one waits; or the end does."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


def close_all(descriptors: list[int]) -> None:
    """A client's: its file system may answer a close with an error, which is the client's."""
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            pass
