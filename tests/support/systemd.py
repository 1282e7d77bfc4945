"""A real systemd with cgroups of its own, beside the machine's, for the systemd cgroup driver of runtimes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import leftovers
from tests.support.bed import Bed
from tests.support.runtimes import Result, execute

_PROGRAM = Path(__file__).with_name("programs") / "run_systemd.sh"
SYSTEMD = "/lib/systemd/systemd"


class Systemd:
    """A context manager. Files below /tmp are the machine's; /run and /dev are its own.

    links: names in /dev/char ("195:0") with what they lead to.
    """

    def __init__(self, bed: Bed, links: dict[str, str]) -> None:
        self.bed = bed
        self.name = bed.name("systemd")
        self._place = bed.directory("systemd")
        (self._place / "links").write_text("".join(f"{name} {target}\n" for name, target in links.items()))
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def __enter__(self) -> Self:
        command = ["unshare", "-m", "--propagation", "private", "sh", str(_PROGRAM), self.name, str(self._place)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            assert leftovers.until(self._is_running, seconds=20), "systemd does not come up"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, *command: str) -> Result:
        """A command in its namespaces."""
        return execute(self.command(command), env={"PATH": os.environ["PATH"]})

    def command(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "-m", "-p", "-C", *command]

    def _is_running(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"systemd ended: {self._process.communicate()[1].decode(errors='replace')}")
        self.pid = self.pid or self._find(self._process.pid)
        return bool(self.pid) and self.run("systemctl", "is-system-running").out.strip() in ("running", "degraded")

    def _find(self, pid: int) -> int:
        """The process that is process 1 of its own pid namespace, among the descendants of ``pid``."""
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                return pid
        except OSError:
            return 0
        return next((found for child in children if (found := self._find(int(child)))), 0)

    def _end(self) -> None:
        assert self._process is not None
        self._process.communicate(b"\n", timeout=60)
        assert (self._place / "gone").exists()
