"""systemd's two protocols for services: sockets that it opened, and messages to it (sd_notify, sd_listen_fds).

Written down in sd_notify(3) and sd_listen_fds(3): datagrams of VARIABLE=value lines; received descriptors begin at 3.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

_FIRST = 3
#: It is behind with reading, starts anew, or the kernel has no room: it may be there in a moment.
_LATER = (
    *(errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
    *(errno.ECONNREFUSED, errno.ENOENT),
)


class Systemd:
    """The service manager, or none: then every message goes nowhere."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes its variables out of ``environment``: they are not for processes that we start."""
        self._address = environment.pop("NOTIFY_SOCKET", "")
        self._waiting: deque[tuple[str, ...]] = deque()
        #: (name, descriptor) of the sockets that it gave us.
        self.given = _given(environment)

    def tell(self, *lines: str) -> None:
        """Send ``lines``. Does not wait: what is not taken now, ``flush`` sends later. Messages stay in order."""
        if self._address:
            self._waiting.append(lines)
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it is taken. Raises nothing."""
        while self._waiting and self._send(self._waiting[0]):
            self._waiting.popleft()

    def _send(self, lines: Sequence[str]) -> bool:
        """Whether it is done with: sent, or never will be."""
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.connect(address)
                manager.send("\n".join(lines).encode())
        except OSError as error:
            return error.errno not in _LATER
        return True


def _given(environment: MutableMapping[str, str]) -> list[tuple[str, int]]:
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    environment.pop("LISTEN_PIDFDID", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    found = []
    for index in range(int(count)):
        descriptor = _FIRST + index
        os.set_inheritable(descriptor, False)
        name = names[index] if index < len(names) else "unknown"
        # All sockets of a unit have its name.
        found.append((_file(descriptor) if name.endswith(".socket") else name, descriptor))
    return found


def _file(descriptor: int) -> str:
    """The last part of a listening socket's path; "unknown" for anything else."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            path = found.getsockname()
    except OSError:
        return "unknown"
    return os.path.basename(path) if isinstance(path, str) and path else "unknown"
