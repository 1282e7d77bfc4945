"""The agent's side of what outlives it: the keeper process, and systemd's descriptor store where there is one."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import time

from nvc.agent import keeper
from nvc.base.errors import AgentError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.notify import Systemd

_PACKET = 512
_START_SECONDS = 5.0
_AGAIN_SECONDS = 0.3
_ANSWER_SECONDS = 2.0


class Keeping:
    """Descriptors by name, kept twice. Every call is short; they are for the one thread of the agent."""

    def __init__(self, directory: str, systemd: Systemd) -> None:
        """Connects to the keeper, after starting one where none is. Raises AgentError."""
        self._directory = directory
        self._systemd = systemd
        self._socket = _connect(directory)

    def fileno(self) -> int:
        """Readable when the keeper went away: it says nothing by itself."""
        return self._socket.fileno()

    def again(self) -> None:
        """Another keeper in the place of one that went away; what it held has to be put again. Raises AgentError."""
        self._socket.close()
        self._socket = _connect(self._directory)

    def get(self) -> dict[str, int]:
        """What is kept, by name; the descriptors are the caller's. Raises AgentError."""
        found: dict[str, int] = {}
        try:
            self._send(b"get")
            while True:
                packet, rights, _, _ = self._socket.recvmsg(_PACKET, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
                descriptors = [
                    number
                    for level, kind, data in rights
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                    for number in array.array("i", data[: len(data) // 4 * 4])
                ]
                name = packet[3:].decode(errors="replace")
                if packet.startswith(b"fd ") and len(descriptors) == 1 and name not in found:
                    found[name] = descriptors[0]
                    continue
                for descriptor in descriptors:
                    os.close(descriptor)
                if packet == b"end":
                    break
                if not packet.startswith(b"fd "):
                    raise AgentError(f"keeper: {packet[:80].decode(errors='replace') or 'went away'}")
        except OSError as error:
            raise AgentError(f"keeper: {reason(error)}") from None
        for name in found.keys() - {given for given, _ in self._systemd.given}:
            if keeper.is_listener(name):
                self._systemd.keep(name, found[name])  # its store was emptied when the service was stopped
        for name, descriptor in self._systemd.given:
            if name not in found:
                found[name] = descriptor
                if keeper.is_listener(name):
                    self._give(name, descriptor)  # the keeper was killed too
            elif name in keeper.OWN:
                # A socket unit's socket has the path now, whatever was there before.
                os.close(found[name])
                found[name] = descriptor
            else:
                os.close(descriptor)  # the same one
        self._systemd.given = []
        return found

    def put(self, name: str, descriptor: int, instead: str = "") -> None:
        """Keep a copy, and from that moment on not what has the name ``instead``. Raises AgentError."""
        self._give(f"{name} {instead}".rstrip(), descriptor)
        if keeper.is_listener(name):
            self._systemd.keep(name, descriptor)

    def drop(self, name: str) -> None:
        """Let go of it. Raises nothing: a keeper that went away holds nothing."""
        if keeper.is_listener(name):
            self._systemd.drop(name)
        try:
            self._send(f"drop {name}".encode())
            self._answer()
        except (OSError, AgentError):
            pass

    def alive(self) -> None:
        """Say that the agent is well. Raises nothing."""
        try:
            self._socket.send(b"alive", socket.MSG_DONTWAIT)
        except OSError:
            pass

    def leave(self) -> None:
        """The agent ends, and has thawed everything. Raises nothing."""
        try:
            self._send(b"leave")
            self._answer()
        except (OSError, AgentError):
            pass
        self._socket.close()

    def _give(self, name: str, descriptor: int) -> None:
        try:
            socket.send_fds(self._socket, [f"put {name}".encode()], [descriptor])
            self._answer()
        except OSError as error:
            raise AgentError(f"keeper: {reason(error)}") from None

    def _send(self, packet: bytes) -> None:
        self._socket.send(packet)

    def _answer(self) -> None:
        packet = self._socket.recv(_PACKET)
        if packet != b"ok":
            raise AgentError(f"keeper: {packet.decode(errors='replace') or 'went away'}")


def _connect(directory: str) -> socket.socket:
    path = f"{directory}/{keeper.SOCKET}"
    until = time.monotonic() + _START_SECONDS
    started = 0.0
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(path)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > until:
                raise AgentError(f"{path}: {reason(error)}", hint="the keeper does not start") from None
        # Again: one that was about to end may have kept the new one from starting.
        if time.monotonic() - started > _AGAIN_SECONDS:
            _start(directory)
            started = time.monotonic()
        else:
            time.sleep(0.01)


def _start(directory: str) -> None:
    # -I -S: as small as it gets, and nothing of the environment's.
    command = [sys.executable, "-I", "-S", os.path.realpath(keeper.__file__), directory]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False, timeout=_START_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise AgentError(f"keeper: {error}", hint=f"tried {' '.join(command)}") from None
    if done.returncode:
        said = done.stdout.strip() or f"it ended with {done.returncode}, what it said is above"
        raise AgentError(f"keeper: {said}", hint=f"{directory} must be writable and have room")
