"""systemd's two protocols for services: sockets that it opened, and messages to it (sd_notify, sd_listen_fds).

Written down in sd_notify(3) and sd_listen_fds(3): datagrams of VARIABLE=value lines, descriptors beside them; received
descriptors begin at 3. The descriptor store is the second one's use after the first one's FDSTORE=1.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

_FIRST = 3
_STORE = "FDSTORE=1"
#: It is behind with reading, starts anew, or the kernel has no room: it may be there in a moment.
_LATER = (
    *(errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS),
    *(errno.ECONNREFUSED, errno.ENOENT),
)


class Systemd:
    """The service manager, or none: then every message goes nowhere."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes its variables out of ``environment``: they are not for processes that we start."""
        self._address = environment.pop("NOTIFY_SOCKET", "")
        stored = environment.pop("FDSTORE", "")
        #: Whether it may keep descriptors for us. FDSTORE says how many, since systemd 254; older ones do not say it.
        self.keeps = bool(self._address) and stored != "0"
        self._waiting: deque[_Message] = deque()
        #: (name, descriptor) of what it gave us, sockets and kept descriptors alike.
        self.given = _given(environment)

    def tell(self, *lines: str, descriptors: Sequence[int] = ()) -> bool:
        """Send ``lines``; False without a listener. Does not wait: what is not taken now, ``flush`` sends later.

        Messages stay in order, and descriptors are kept open until they are sent.
        """
        if not self._address:
            return False
        self.flush()
        if self._waiting or not self._send(lines, descriptors):
            try:
                self._waiting.append(_Message(lines, descriptors))
            except OSError:  # no descriptor is free
                return False
        return True

    def flush(self) -> None:
        """Send what waits, as far as it is taken. Raises nothing."""
        while self._waiting and self._send(self._waiting[0].lines, self._waiting[0].descriptors):
            self._waiting.popleft().close()

    @property
    def waiting(self) -> int:
        """How many messages it has not taken yet."""
        return len(self._waiting)

    def keep(self, name: str, descriptor: int) -> bool:
        """Put a descriptor into the store; systemd lets go of it by itself only when it hangs up."""
        return self.keeps and self.tell(_STORE, f"FDNAME={name}", descriptors=(descriptor,))

    def drop(self, name: str) -> None:
        """Take what has this name out of the store."""
        if not self.keeps:
            return
        lines = (_STORE, f"FDNAME={name}")
        for message in [one for one in self._waiting if one.lines == lines]:
            message.close()
            self._waiting.remove(message)
        self.tell("FDSTOREREMOVE=1", f"FDNAME={name}")

    def _send(self, lines: Sequence[str], descriptors: Sequence[int]) -> bool:
        """Whether it is done with: sent, or never will be."""
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
                manager.setblocking(False)
                manager.connect(address)
                manager.sendmsg(["\n".join(lines).encode()], rights)
        except OSError as error:
            return error.errno not in _LATER
        return True


class _Message:
    """One that waits, with descriptors of its own."""

    def __init__(self, lines: Sequence[str], descriptors: Sequence[int]) -> None:
        """Raises OSError."""
        self.lines = tuple(lines)
        self.descriptors: list[int] = []
        try:
            for descriptor in descriptors:
                self.descriptors.append(os.dup(descriptor))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


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
