"""nvc.linux.cgroup in a cgroup namespace, where the mounted root is "/..": reached by a mount of our own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nvc.linux import cgroup, const, syscalls
from nvc.linux.cgroup import PrivateNamespace
from nvc.linux.syscalls import SyscallError
from tests.nvc.linux import devices
from tests.support import leftovers
from tests.support.isolation import in_namespaces

pytestmark = pytest.mark.root
HIERARCHIES = {1: devices.V1, 2: devices.V2}


@pytest.mark.parametrize("version", HIERARCHIES)
def test_cgroup_outside_the_mounts_is_opened_by_its_own_mount(version: int) -> None:
    hierarchy = HIERARCHIES[version]
    if not (hierarchy / "cgroup.procs").exists():
        pytest.skip("no such hierarchy")

    def run(group: Path) -> tuple[int, int]:
        inner = group / "inner"
        inner.mkdir()
        places = (line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        home = next(path for names, path in places if (names == "devices" if version == 1 else not names))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            syscalls.unshare(const.CLONE_NEWCGROUP)
            if version == 2 and (devices.V1 / "devices.list").exists():
                syscalls.umount2(str(devices.V1))
            before = leftovers.mountinfo()
            with pytest.raises(PrivateNamespace, match=r"relative path in mount prefix: /\.\.") as caught:
                cgroup.find(proc_root="/", pid=os.getpid(), mount_pid=os.getpid())
            told = caught.value
            assert (told.version, told.place) == (version, "/")
            with cgroup.open_private(told.version, told.place, told.controllers) as directory:
                assert before == leftovers.mountinfo()
                with cgroup.open_private(told.version, "/inner", told.controllers) as below:
                    assert below.stat().st_ino == inner.stat().st_ino
                with pytest.raises(SyscallError) as refused:
                    cgroup.open_private(told.version, "/../..", told.controllers)
                assert refused.value.errno == errno.ENOENT
                return directory.stat().st_ino, group.stat().st_ino
        finally:
            # Its own again: below the machine's root, one whose controllers are enabled for others takes no process.
            Path(f"{hierarchy}{home}", "cgroup.procs").write_text(str(os.getpid()))
            inner.rmdir()

    with devices.cgroup(hierarchy, "private") as group:
        opened, expected = in_namespaces(run, group)
    assert expected == opened
