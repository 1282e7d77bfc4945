"""A program in ldconfig's place that tells what it sees, and the ways to have it run
(``nvc.container.ldcache.update``)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from nvc.base.log import Log
from nvc.container.apply import apply
from nvc.container.ldcache import process
from nvc.container.ldcache.program import open_program
from nvc.container.lookup import Located
from nvc.container.operations import UpdateLdcache

#: poll and recvmsg (asm/unistd_64.h, asm-generic/unistd.h: ppoll), which the process that will be ldconfig waits in.
WAITING = ("7", "47") if os.uname().machine == "x86_64" else ("73", "212")
#: Of a process that was started in advance: another program than is asked for; without the extension, and with it.
EARLY = ("in Python", "another in Python", "standing by", "another standing by")
TWO = ["in Python", "standing by"]
PROBE = Path(__file__).parent / "programs/ldconfig_probe.c"


class Kept(Log):
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def warn(self, text: str) -> None:
        self.lines.append(text)


def run(
    located: Located,
    program: Path | str,
    *directories: str,
    limit: float = 20.0,
    no_pivot: bool = False,
    way: str = "now",
) -> list[str]:
    """way: of ``EARLY``, a process waits to be it, started before anything is known of the container."""
    log = Kept()
    if way in EARLY:
        wait_for("/sbin/ldconfig" if way.startswith("another") else program)
    apply(located, "/", (UpdateLdcache(str(program), directories or ("/usr/lib64",), no_pivot, limit),), log)
    return log.lines


def wait_for(program: Path | str) -> int:
    """The process that waits to be ``program``, once it waits."""
    with open_program(str(program)) as file:
        pid = process.in_advance(file)
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}/syscall").read_text().split()[0] not in WAITING:
        assert time.monotonic() < end
        time.sleep(0.001)
    return pid
