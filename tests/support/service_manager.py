"""A service manager for one service: what systemd does for Type=notify with a socket unit.

By sd_notify(3) and sd_listen_fds(3).
"""

from __future__ import annotations

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

    def __init__(self, place: Path, directory: Path, names: Sequence[str]) -> None:
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
        #: Every line of every message.
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

    def start(self, *arguments: str) -> None:
        """`nvc-py ARGUMENTS`, with the sockets; it is ready when this returns."""
        high = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, _FREE) for one in self.sockets]
        moved = " ".join(f"{_FIRST + index}<&{number} {number}<&-" for index, number in enumerate(high))
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": self._address,
            "LISTEN_FDS": str(len(high)),
            "LISTEN_FDNAMES": ":".join(["nvc-agent.socket"] * len(high)),
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
            lines = self._notify.recv(4096).decode().splitlines()
            self.told += lines
            if not lines:
                return
