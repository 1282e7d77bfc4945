"""Which cgroup layout a command sees, chosen command by command without changing the machine.

A hybrid machine can show a command pure v1 (the unified hierarchy unmounted in a mount namespace of its own) or pure v2
(cgroup2 alone mounted at /sys/fs/cgroup there). A pure v2 machine has one view.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from nvc.linux import bpf
from nvc.linux.cgroup import open_directory

ROOT = Path("/sys/fs/cgroup")
_V1 = 'umount /sys/fs/cgroup/unified && exec "$@"'
_V2 = (
    "for point in $(awk '$5 ~ \"^/sys/fs/cgroup/\" {print $5}' /proc/self/mountinfo); do umount $point; done; "
    'umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"'
)
_HERE = 'exec "$@"'


@dataclass(frozen=True)
class CgroupView:
    """name: "hybrid", "v1" or "v2". devices: the cgroup version that holds the device rules in it."""

    name: str
    devices: int
    script: str

    def wrap(self, command: list[str]) -> list[str]:
        """The command in a mount namespace of its own with this view; nothing it mounts reaches the machine."""
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", self.script, self.name, *command]


def available() -> tuple[CgroupView, ...]:
    """The views that this machine can show."""
    if not (ROOT / "devices").is_dir():
        return (CgroupView("v2", 2, _HERE),)
    views = [CgroupView("hybrid", 1, _HERE), CgroupView("v1", 1, _V1 if (ROOT / "unified").is_dir() else _HERE)]
    probe = CgroupView("v2", 2, _V2)
    answer = subprocess.run(probe.wrap(["stat", "-f", "-c", "%T", str(ROOT)]), capture_output=True, text=True)
    return (*views, probe) if answer.stdout.strip() == "cgroup2fs" else tuple(views)


def named(name: str) -> CgroupView | None:
    """The view of that name, or None where the machine cannot show it."""
    return next((view for view in available() if view.name == name), None)


def directories(part: str) -> list[Path]:
    """Every cgroup directory of any hierarchy whose name contains ``part``: what a test must not leave behind."""
    found = []
    for directory, names, _ in os.walk(ROOT):
        found += [Path(directory, name) for name in names if part in name]
    return found


def device_rules(version: int, directory: Path) -> list[object]:
    """What decides about devices there: the lines of version 1, the attached programs of version 2."""
    if version == 1:
        return sorted((directory / "devices.list").read_text().splitlines())
    with open_directory(str(directory)) as opened:
        return [bpf.read(number).instructions for number in bpf.query(opened)[0]]


def device_cgroup(pid: int) -> tuple[int, Path]:
    """The cgroup of a process that has its device rules: (version, directory)."""
    places = [line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    if (ROOT / "devices").is_dir():
        return 1, Path(f"{ROOT}/devices{next(path for names, path in places if names == 'devices')}")
    return 2, Path(f"{ROOT}{next(path for names, path in places if not names)}")


def remove_when_empty(name: str, *, seconds: float = 20.0) -> None:
    """As ``remove``, with time for the last processes in it to end: podman's conmon outlives its container."""
    end = time.monotonic() + seconds
    remove(name)
    while directories(name) and time.monotonic() < end:
        time.sleep(0.05)
        remove(name)


def remove(name: str) -> None:
    """Remove the empty cgroup of that name at the top of every hierarchy; missing or used ones are left."""
    for directory in {ROOT, *ROOT.glob("*/")}:
        remove_tree(Path(directory, name))


def remove_tree(top: Path) -> None:
    """Remove a cgroup and those below it; used ones are left."""
    for path in sorted(top.glob("**/"), reverse=True):
        try:
            if path.is_relative_to(ROOT / "unified") and not (ROOT / "unified").is_mount():
                # A runtime in the view v1 took the directory for a hierarchy.
                for file in path.iterdir():
                    file.unlink()
            path.rmdir()
        except OSError:
            continue
