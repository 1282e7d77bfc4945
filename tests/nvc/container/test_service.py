"""What the container service is while it waits: its name, rights, file mode mask and parent-death signal."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nvc.base.log import Log
from nvc.container import service
from nvc.container.messages import ContainerConfig, InspectRequest
from nvc.linux import process, rights
from tests.support import leftovers
from tests.support.injection import container, isolated

pytestmark = pytest.mark.root


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _child_of(pid: int) -> int:
    """The one that it has, once it has one."""
    end = time.monotonic() + 20
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        assert time.monotonic() < end
        time.sleep(0.001)
    (child,) = map(int, found)
    return child


@isolated
def test_it_waits_with_next_to_no_rights(rootfs: Path) -> None:
    umask = os.umask(0o077)
    with container(rootfs) as pid:
        client = service.start(deadline=10, log=Log.none())
        config = ContainerConfig(pid, str(rootfs))
        client.inspect(InspectRequest(config, supervised=True, find_cgroup=False, find_compat=False))
        found = _status(client._client.pid)
        client.close()
    os.umask(umask)
    assert found["Name"] == "nvc:[container]"
    assert found["Umask"] == "0022"
    held = {name: int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert held["CapInh"] == held["CapAmb"] == 0
    assert held["CapPrm"] & ~rights.mask(rights.PERMITTED) == 0
    assert held["CapEff"] == rights.mask(rights.of_phase("info"))
    assert held["CapBnd"] & ~rights.mask(rights.BOUNDING) == 0


@isolated
def test_the_process_for_ldconfig_is_started_first(rootfs: Path) -> None:
    """Before anything is known of the container. It ends with the service when there comes nothing."""
    with container(rootfs):
        client = service.start(deadline=10, log=Log.none())
        child = _child_of(client._client.pid)
        end = time.monotonic() + 20
        while _status(child)["Name"] != "nvc:[ldconfig]":
            assert time.monotonic() < end
        os.kill(child, 0)
        client.close()
    assert leftovers.until(lambda: not Path(f"/proc/{child}").exists(), seconds=20)


def test_what_an_operation_left_open_is_closed_before_the_end() -> None:
    """A directory of the container that is open would keep its file system from being unmounted."""

    def release() -> int:
        left_open, end = os.open("/usr", os.O_PATH), os.open("/dev/null", os.O_RDONLY)
        service.Handlers(Log.none()).release(end)
        kept = set(map(int, os.listdir("/proc/self/fd")))
        return left_open in kept or 2 in kept or end not in kept or len(kept) > 2  # one was of the list

    assert os.waitstatus_to_exitcode(os.waitpid(process.fork(release), 0)[1]) == 0
