"""A configure that is killed at each of its system calls: what it leaves does not keep the next one from its work.

NVC_SOAK_EVERY: every how many calls (11 when not set; `make soak`: each of them).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.log import Log
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from tests.support import injection, leftovers
from tests.support.injection import container, locate, mountinfo, operations
from tests.support.isolation import in_namespaces
from tests.support.killed import killed_at

pytestmark = [pytest.mark.root, pytest.mark.timeout(3600)]
EVERY = int(os.environ.get("NVC_SOAK_EVERY", "11"))
LOG = Log.none()
#: The directory in /etc that an update of the loader cache works in.
ASIDE = "ld.so.cache.nvc-*"


def names(rootfs: Path) -> set[str]:
    return {str(path.relative_to(rootfs)) for path in rootfs.rglob("*")}


def age(rootfs: Path) -> int:
    """Make what a killed update left old enough to be taken for that. How many there were."""
    found = list((rootfs / "etc").glob(ASIDE))
    for path in found:
        os.utime(path, (0, 0))
    return len(found)


def at_each_call(driver_root: Path, place: Path, body: Callable[[int, Path], object], *, undoes: bool) -> int:
    """Kill ``body`` (pid of the container, its root) at every EVERY-th call until it ends before. The number of calls.

    undoes: what is mounted then is all or nothing.
    """
    expected: set[str] | None = None
    call, found = 1, 0
    while True:
        rootfs = injection.make_rootfs(place / f"rootfs{call}")
        host = mountinfo()
        with container(rootfs) as pid:
            before = mountinfo(pid)
            was_killed = killed_at(call, lambda pid=pid, rootfs=rootfs: body(pid, rootfs))
            if undoes:

                def is_settled(pid: int = pid, before: list[str] = before, rootfs: Path = rootfs) -> bool:
                    if list((rootfs / "etc").glob(ASIDE)):
                        return False  # at work, or undoing
                    return mountinfo(pid) == before or len(mountinfo(pid)) >= len(before) + MOUNTS

                assert leftovers.until(is_settled, seconds=30)
        found += age(rootfs)
        # The killed one's namespace goes with the container. The host has nothing of it.
        assert mountinfo() == host
        assert [name for name in os.listdir("/run") if "nvc-tmpfs" in name] == []
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            apply(located, str(driver_root), operations(located), LOG)
            assert b"libcuda.so.1" in (rootfs / "etc/ld.so.cache").read_bytes()
        left = names(rootfs)
        assert [name for name in left if ".nvc" in name or "nvc-" in name] == []
        expected = expected or left
        assert left == expected
        if not was_killed:
            assert bool(found) != undoes
            return call
        call += EVERY


#: That a whole plan makes: found by the first test.
MOUNTS = 9


def test_of_the_process_that_changes_the_container(driver_root: Path, tmp_path: Path) -> None:
    """Killed outright, it cannot undo: the start fails, and the container's namespace goes."""

    def run() -> None:
        def body(pid: int, rootfs: Path) -> None:
            located = locate(pid, rootfs)
            apply(located, str(driver_root), operations(located), LOG)

        calls = at_each_call(driver_root, tmp_path, body, undoes=False)
        print(f"killed at every {EVERY}. of {calls} calls")
        assert calls > 200

    in_namespaces(run, timeout=3000)


def test_of_the_caller(driver_root: Path, tmp_path: Path) -> None:
    """The engine kills its hook: the container service undoes what it did, or had come to the end."""

    def run() -> None:
        def body(pid: int, rootfs: Path) -> None:
            client = service.start(deadline=60, log=LOG)
            client.inspect(InspectRequest(ContainerConfig(pid, str(rootfs)), True, False, False))
            plan = operations(locate(pid, rootfs))
            client.apply(ApplyRequest(str(driver_root), plan), deadline=60)
            client.close()

        calls = at_each_call(driver_root, tmp_path, body, undoes=True)
        print(f"killed at every {EVERY}. of {calls} calls")
        assert calls > 20

    in_namespaces(run, timeout=3000)
