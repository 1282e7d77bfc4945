"""What a test may not leave on the machine: mounts, cgroups, processes. All of a session's carry its token."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.support import cgroupview

T = TypeVar("T")

#: Environment variable that every process started for a test has.
VARIABLE = "TESTBED_TOKEN"
#: A bed's token, wherever it stands.
TOKEN = re.compile(r"nvct[0-9a-f]{8}")


def mountinfo(pid: int | str = "self", *, token: str = "") -> list[str]:
    """Lines of a process's mountinfo, less those of beds with another token.

    Tests beside this one mount there and remove what they mounted on, which ends mounts in every namespace: also in one
    that nothing is propagated to.
    """
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if not (found := TOKEN.search(line)) or found[0] == token]


def mounts(token: str) -> list[str]:
    """Lines of this namespace's mountinfo that name the token as mount point, root or source."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if token in line]


def processes(token: str) -> list[str]:
    """Processes, other than this one and those that are gone, whose environment has the token."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if f"{VARIABLE}={token}".encode() in Path("/proc", entry, "environ").read_bytes():
                found.append(f"{entry} {Path('/proc', entry, 'cmdline').read_bytes()[:200]!r}")
        except OSError:
            continue
    return found


def everything(token: str, *, seconds: float = 20.0) -> list[str]:
    """All of it; a runtime's last processes get a moment to end."""
    end = time.monotonic() + seconds
    while True:
        left = [f"mount: {line}" for line in mounts(token)]
        left += [f"cgroup: {path}" for path in cgroupview.directories(token)]
        left += [f"process: {line}" for line in processes(token)]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def end_processes(token: str, *, seconds: float = 5.0) -> list[str]:
    """End every process that was started with the token (shims, containers); returns those that do not end."""
    end = time.monotonic() + seconds
    while left := processes(token):
        if time.monotonic() > end:
            return left
        for line in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        time.sleep(0.1)
    return []


def remove(token: str) -> None:
    """Remove all of it, after a test that failed: each one after it would fail for it, and it would stay."""
    end_processes(token)
    for line in reversed(mounts(token)):
        subprocess.run(["umount", "--lazy", line.split()[4]], check=False, capture_output=True)

    def has_none() -> bool:
        for top in cgroupview.directories(token):
            for path in top.glob("**/"):
                with contextlib.suppress(OSError):
                    (path / "freezer.state").write_text("THAWED")
                with contextlib.suppress(OSError):  # of what has no variable of ours any more
                    for pid in (path / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
            cgroupview.remove_tree(top)
        return not cgroupview.directories(token)

    until(has_none, seconds=5)


def until(holds: Callable[[], T], *, seconds: float, step: float = 0.02) -> T:
    """What ``holds`` returns as soon as that is true; after ``seconds``, what it returns then.

    A file or a process that goes while ``holds`` looks at it: not yet true. Raises OSError for it after ``seconds``.
    """
    end = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > end
        try:
            if (found := holds()) or is_last:
                return found
        except (FileNotFoundError, ProcessLookupError):
            if is_last:
                raise
        time.sleep(step)


def wait_until(
    holds: Callable[[], T], what: str = "it does not come true", *, seconds: float = 60, step: float = 0.005
) -> T:
    """As ``until``. Raises AssertionError, which says ``what``, for what is not true after ``seconds``."""
    found = until(holds, seconds=seconds, step=step)
    assert found, f"{what}: not within {seconds} s"
    return found
