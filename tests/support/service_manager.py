"""A service manager for one service: what systemd does for Type=notify with a socket unit and a descriptor store.

By sd_notify(3) and sd_listen_fds(3). FDSTORE in the environment is systemd 254's; older ones keep descriptors too.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.support import leftovers

_FIRST, _FREE = 3, 200
#: nvc-py for the process that is given the descriptors.
ACTIVATED = Path(__file__).parent / "programs/activated.py"


class Manager:
    """A context manager. place: an empty directory; names: of the sockets that it makes in ``directory``."""

    def __init__(self, place: Path, directory: Path, names: Sequence[str], *, says_store: bool = True) -> None:
        self._environment = {"FDSTORE": "8192"} if says_store else {}
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(place / "notify"))
        self._address = str(place / "notify")
        self.log = place / "log"
        self.sockets = []
        for name in names:
            one = socket.socket(socket.AF_UNIX)
            one.bind(str(directory / name))
            one.listen(8)
            self.sockets.append(one)
        #: Its descriptor store, and every message.
        self.store: dict[str, int] = {}
        self.told: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self._address)
        self._thread.join(10)
        self._notify.close()
        for one in self.sockets:
            one.close()
        for number in self.store.values():
            os.close(number)

    def start(self, *arguments: str) -> None:
        """`nvc-py ARGUMENTS`, with the sockets and what is in the store; it is ready when this returns."""
        given = [("nvc-agent.socket", one.fileno()) for one in self.sockets] + list(self.store.items())
        high = [fcntl.fcntl(number, fcntl.F_DUPFD, _FREE) for _, number in given]
        moved = " ".join(f"{_FIRST + index}<&{number} {number}<&-" for index, number in enumerate(high))
        environment = {
            **os.environ,
            **self._environment,
            "NOTIFY_SOCKET": self._address,
            "LISTEN_FDS": str(len(given)),
            "LISTEN_FDNAMES": ":".join(name for name, _ in given),
        }
        words = ["bash", "-c", f'exec "$0" "$@" {moved}', sys.executable, str(ACTIVATED), *arguments]
        ready = self.told.count("READY=1")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(words, pass_fds=high, stderr=log, env=environment)
        for number in high:
            os.close(number)
        assert leftovers.until(lambda: self.told.count("READY=1") > ready, seconds=30), self.log.read_text()

    def kill(self) -> None:
        """SIGKILL to the service."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)

    def _receive(self) -> None:
        while True:
            data, rights, _, _ = self._notify.recvmsg(4096, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
            numbers = array.array("i", b"".join(content for _, _, content in rights))
            lines = data.decode().splitlines()
            name = next((line.removeprefix("FDNAME=") for line in lines if line.startswith("FDNAME=")), "stored")
            if "FDSTORE=1" in lines:
                self.store[name] = numbers.pop()
            if "FDSTOREREMOVE=1" in lines and name in self.store:
                os.close(self.store.pop(name))
            for number in numbers:
                os.close(number)
            self.told += lines
            if not lines:
                return
