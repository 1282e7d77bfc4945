"""Pre-fork servers beside a test: an agent that does nothing else, and an installation whose client speaks to it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from nvc.agent import standby
from tests.support import launchers
from tests.support.cgroupview import CgroupView

SECONDS = 20


class WarmBed:
    """An installation of its own below ``directory`` (short: a socket's path has 107 bytes), warm or not.

    A context manager; leaving it ends what was started.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "run"
        self.prefix = directory / "product"
        self.commands = launchers.install(self.prefix)
        if launchers.PREFIX:
            raise RuntimeError("an installation that is tested cannot be told of another socket")
        self.library = self.prefix / "lib/nvc-py"
        client_at(self.socket, directory / "client")
        for name, module in launchers._MODULES.items():
            if module in launchers.CLIENT_MODULES:
                shutil.copy2(directory / "client", self.prefix / "bin" / name)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WarmBed:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, view: CgroupView | None = None, words: Sequence[str] = ()) -> None:
        """Serve, in a mount namespace that shows ``view``. Returns when it does. words: in front of the command."""
        listener = standby.listen(str(self.socket))
        command = [*words, *standby.command(listener.fileno(), str(self.library))]
        self.process = subprocess.Popen(
            command if view is None else view.wrap(command),
            pass_fds=(listener.fileno(),),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        listener.close()
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        line = os.read(self.process.stdout.fileno(), 64) if ready else b""
        if line != b"ready\n":
            raise RuntimeError(f"the pre-fork server said {line!r}")

    def stop(self) -> None:
        """End it as the agent does, and wait for it."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(SECONDS)
            assert process.stdout is not None
            process.stdout.close()

    def served(self) -> int:
        """Grows with each request that a worker did: faults of children that were waited for."""
        # Its answer comes a moment before a worker's end.
        until = time.monotonic() + SECONDS
        while not {"nvc:[idle]", "nvc:[closer]"}.issuperset(self._children()):
            if time.monotonic() > until:
                raise RuntimeError("a worker does not end")
            time.sleep(0.001)
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[8])  # cminflt, proc(5)

    def _children(self) -> list[str]:
        """The names of its processes."""
        names = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
                except OSError:
                    continue
                if int(rest.split()[1]) == self.pid:
                    names.append(name)
        return names

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def python(self, name: str) -> str:
        """The Python program that a command becomes without an agent."""
        return str(self.library / "bin" / name)


def client_at(socket: Path, target: Path, *words: str) -> None:
    """Build the client for a socket of its own."""
    command: Sequence[str] = ("make", "-s", "-C", str(launchers.CHECKOUT / "native"), "client-at")
    subprocess.run([*command, f"SOCKET={socket}", f"TARGET={target}", *words], check=True, timeout=SECONDS)


def waiting_for_ldconfig(pid: int) -> int | None:
    """The process below ``pid`` that waits to be ldconfig, once it is in recvmsg."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            below = waiting_for_ldconfig(int(child))
            name, call = (Path(f"/proc/{child}/{file}").read_text().split()[0] for file in ("comm", "syscall"))
        except OSError:
            continue  # it has ended
        if below is not None:
            return below
        if name == "nvc:[ldconfig]" and call == {"x86_64": "47", "aarch64": "212"}.get(os.uname().machine):
            return int(child)
    return None
