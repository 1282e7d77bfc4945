"""Helpers of the cgroup tests: cgroups of their own, filters, and what a process inside may open."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvc.linux.bpf import instruction

V1 = Path("/sys/fs/cgroup/devices")
V2 = Path("/sys/fs/cgroup/unified") if Path("/sys/fs/cgroup/unified").is_dir() else Path("/sys/fs/cgroup")
#: Nodes that stand in for GPUs: real drivers answer, no matter what with. EPERM is the filter's answer alone.
NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
#: No driver has this major (linux/major.h: 240-254 are for local use).
ABSENT_MAJOR = 250


@contextmanager
def cgroup(hierarchy: Path, name: str) -> Iterator[Path]:
    """A new cgroup, removed however the test ends."""
    path = hierarchy / f"nvc-test-{os.getpid()}-{name}"
    path.mkdir()
    try:
        yield path
    finally:
        for child in [*sorted(path.rglob("*/"), reverse=True), path]:
            if child.is_dir():
                remove(child)


def remove(path: Path) -> None:
    for _ in range(1000):
        try:
            path.rmdir()
            return
        except OSError:  # the last process is still being reaped
            time.sleep(0.02)
    path.rmdir()


def make_nodes(directory: Path) -> None:
    for name, (major, minor) in NODES.items():
        os.mknod(directory / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))


def allowed(group: Path, directory: Path, *, flags: int = os.O_RDWR) -> str:
    """The names of the nodes that a process in ``group`` can open, joined; then "mknod" if it can make one."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            names = []
            for name in NODES:
                try:
                    os.close(os.open(directory / name, flags))
                    names.append(name)
                except PermissionError:
                    pass
            try:
                os.mknod(directory / f"made-{os.getpid()}", stat.S_IFCHR | 0o600, os.makedev(1, 5))
                names.append("mknod")
            except PermissionError:
                pass
            os.write(write_end, " ".join(names).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        names = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return names


def answer(value: int) -> bytes:
    """A filter that says the same to everything."""
    return instruction(0xB7, 0, 0, 0, value) + instruction(0x95)


def only(major: int, minor: int, access: int = 7) -> bytes:
    """A filter as runtimes write them: one node, any of ``access``; nothing else."""
    return b"".join(
        (
            instruction(0x61, 2, 1, 0),
            instruction(0x61, 4, 1, 4),
            instruction(0x61, 5, 1, 8),
            instruction(0xBF, 3, 2),
            instruction(0x74, 3, imm=16),
            instruction(0x54, 3, imm=~access),
            instruction(0x55, 3, offset=4, imm=0),
            instruction(0x55, 4, offset=3, imm=major),
            instruction(0x55, 5, offset=2, imm=minor),
            instruction(0xB7, 0, imm=1),
            instruction(0x95),
            answer(0),
        )
    )
