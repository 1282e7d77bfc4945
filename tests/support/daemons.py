"""Daemons of a test: their own /run, a log file, a bounded start, and nothing of them left at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Sockets of containerd's shims and more lie in /run, whatever the configuration says. Mounts are shared in there, as
#: on a host with systemd.
_OWN_RUN = 'mount --make-rshared / && mount -t tmpfs -o mode=755 tmpfs /run && exec "$@"'
#: With the shares of the host, where an agent looks for them; descriptor 9 is their directory.
_WITH_SHARES = (
    "mkdir -p /run/nvc/share && exec 9</run/nvc/share && mount --make-rshared / && "
    "mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/nvc/share && "
    'mount -c --bind /proc/self/fd/9 /run/nvc/share && exec 9<&- && exec "$@"'
)
#: Tells whether a daemon answers.
Ready = Callable[[], bool]
START_SECONDS = 20.0
STOP_SECONDS = 15.0


class NotReady(Exception):
    """A daemon that did not come up; the text has the end of its log."""


def own_run(command: Sequence[str], *, shares: bool = False) -> list[str]:
    """The command in a mount namespace of its own, with an empty /run. shares: but for the host's /run/nvc/share."""
    script = _WITH_SHARES if shares else _OWN_RUN
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "daemon", *command]


@dataclass
class Daemon:
    """One daemon.

    env: all of its environment; must have the token that names what was started for a test.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    #: Of the machine's clock.
    launched_s: float = field(default=0.0, init=False)

    def launch(self) -> None:
        """Start it; it may not answer yet."""
        self.launched_s = time.time()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.env),
                start_new_session=True,
            )

    def start(self, ready: Ready, *, seconds: float = START_SECONDS) -> None:
        """Start it and wait until it answers. Raises NotReady; then nothing of it runs."""
        self.launch()
        assert self.process is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if ready():
                return
            time.sleep(0.05)
        said = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        ended = f"ended with {self.process.poll()}" if self.process.poll() is not None else "did not answer in time"
        self.stop()
        raise NotReady(f"{self.name} {ended}:\n{said}")

    def processor_s(self) -> float:
        """Seconds of processor time that it has taken."""
        assert self.process is not None
        ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def has_ended(self) -> bool:
        """Whether it was started and runs no more."""
        return self.process is not None and self.process.poll() is not None

    def stop(self) -> None:
        """End it: politely, then not."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
