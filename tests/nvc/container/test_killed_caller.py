"""A runtime that kills its hook in the middle leaves the container as it found it, or wholly done."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from nvc.base.log import Log
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from tests.support import injection
from tests.support.injection import container, isolated, locate, mountinfo, operations, tree
from tests.support.leftovers import wait_until

pytestmark = pytest.mark.root

#: Seconds after the first mount is seen in the container; all of it takes some 30 ms.
DELAYS = [milliseconds / 1000 for milliseconds in (*range(20), *range(20, 60, 5))]


def configure(pid: int, rootfs: Path, driver_root: Path) -> None:
    """What ``configure`` does with the container service."""
    client = service.start(deadline=60, log=Log.none())
    config = ContainerConfig(pid, str(rootfs))
    client.inspect(InspectRequest(config, supervised=True, find_cgroup=False, find_compat=False))
    client.apply(ApplyRequest(str(driver_root), operations(locate(pid, rootfs))), deadline=60)
    client.close()


def gone(pid: int) -> bool:
    """Ended: a process whose parent was killed is init's to reap, and init may be slow."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@isolated
def killed(driver_root: Path, rootfs: Path, delay: float) -> None:
    with container(rootfs) as pid:
        mounts, files = mountinfo(pid), tree(rootfs)
        caller = os.fork()
        if caller == 0:
            try:
                configure(pid, rootfs, driver_root)
            finally:
                os._exit(0)
        wait_until(lambda: mountinfo(pid) != mounts, step=0.0005)
        children = Path(f"/proc/{caller}/task/{caller}/children").read_text().split()
        time.sleep(delay)
        os.kill(caller, signal.SIGKILL)
        os.waitpid(caller, 0)
        for child in children:
            wait_until(lambda child=child: gone(int(child)))  # type: ignore[misc] # bound on purpose
        after = mountinfo(pid)
        if after == mounts:
            assert tree(rootfs) == files
            return
        # It had come to the end before it heard of it: then nothing may be missing.
        done = locate(pid, rootfs)
        assert apply(done, str(driver_root), operations(done, cache=False), Log.none()) == 0
        assert b"libcuda.so.1" in (injection.inside(pid, rootfs, "/") / "etc/ld.so.cache").read_bytes()


@pytest.fixture(scope="module")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return injection.make_driver_root(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("delay", DELAYS)
def test_all_or_nothing_when_the_caller_is_killed(driver_root: Path, tmp_path: Path, delay: float) -> None:
    killed(driver_root=driver_root, rootfs=injection.make_rootfs(tmp_path / "rootfs"), delay=delay)
