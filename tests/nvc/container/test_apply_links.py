"""Links of the image that lead out of it, and shared mounts: nothing reaches the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.base.errors import LdcacheError, MountError
from nvc.base.log import Log
from nvc.container.apply import apply
from nvc.container.operations import BindMount
from nvc.container.propagation import Propagation
from nvc.linux.fd import Fd
from tests.support import injection
from tests.support.injection import VERSION, container, isolated, locate, mountinfo, operations, tree

pytestmark = pytest.mark.root
LOG = Log.none()
BROKEN = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))

LINKS = [
    pytest.param("dev", id="/dev"),
    pytest.param("usr", id="/usr"),
    pytest.param("usr/lib64", id="library directory"),
    pytest.param("usr/bin", id="binary directory"),
    pytest.param("lib", id="/lib"),
    pytest.param("run", id="/run"),
    pytest.param("etc/nvidia", id="/etc/nvidia"),
    pytest.param("etc/nvidia/nvidia-application-profiles-rc.d", id="profile directory"),
    pytest.param("run/nvidia-persistenced", id="socket directory"),
    pytest.param(f"usr/lib64/libcuda.so.{VERSION}", id="library name"),
    pytest.param("usr/lib64/libcuda.so", id="developer link name"),
    pytest.param("usr/lib64/libcuda.so.1", id="SONAME link name"),
    pytest.param("usr/bin/nvidia-smi", id="program name"),
    pytest.param("lib/fw/gsp.bin", id="firmware name"),
    pytest.param("etc/ld.so.cache", id="/etc/ld.so.cache"),
    pytest.param("etc/ld.so.cache~", id="temporary cache"),
    pytest.param("var/cache/ldconfig", id="auxiliary cache directory"),
]


@pytest.mark.parametrize("form", ["absolute", "relative"])
@pytest.mark.parametrize("name", LINKS)
def test_links_out_of_the_rootfs_never_reach_the_host(
    driver_root: Path, rootfs: Path, tmp_path: Path, name: str, form: str
) -> None:
    @isolated
    def run() -> None:
        outside = tmp_path / "host"
        outside.mkdir()
        (outside / "precious").write_text("host file")
        link = rootfs / name
        kind = "precious" if "." in link.name and "rc.d" not in link.name else ""
        if link.is_dir() and not link.is_symlink():
            for directory, _, _ in os.walk(link, topdown=False):
                os.rmdir(directory)
        link.parent.mkdir(parents=True, exist_ok=True)
        destination = str(outside / kind)
        link.symlink_to(destination if form == "absolute" else "../" * 12 + destination.lstrip("/"))
        before = tree(outside)
        with _container_without_dev(rootfs) as pid:
            try:
                located = locate(pid, rootfs)
                apply(located, str(driver_root), operations(located), LOG)
            except (MountError, LdcacheError):
                pass  # a clear error is as good as a link that was followed inside
            assert tree(outside) == before
            assert (outside / "precious").read_text() == "host file"
            assert not [line for line in mountinfo(pid) if line.split(" ")[1].startswith(str(outside))]
            assert not [line for line in mountinfo() if str(rootfs) in line]

    run()


def _container_without_dev(rootfs: Path) -> object:
    return container(rootfs, with_dev=not (rootfs / "dev").is_symlink())


@pytest.mark.parametrize("name", ["proc", "proc/driver"])
def test_proc_that_leads_out_is_refused(driver_root: Path, rootfs: Path, tmp_path: Path, name: str) -> None:
    @isolated
    def run() -> None:
        outside = tmp_path / "host/driver/nvidia"
        outside.mkdir(parents=True)
        if name == "proc":
            (rootfs / "proc").rmdir()
        (rootfs / name).symlink_to(tmp_path / "host" / name.partition("/")[2])
        with container(rootfs, with_proc=False, with_dev=False) as pid:
            located = locate(pid, rootfs)
            with pytest.raises(MountError) as caught:
                apply(located, str(driver_root), operations(located), LOG)
            assert f"mount operation failed: {rootfs}/proc/driver: no such file or directory" in caught.value.message
            assert list(outside.iterdir()) == []
            assert not [line for line in mountinfo(pid) if "/host/" in line.split(" ")[1]]

    run()


@isolated
def test_a_shared_rootfs_sends_no_mount_to_the_host(driver_root: Path, rootfs: Path) -> None:
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount(None, rootfs, None, injection.MS_SHARED)
    before = mountinfo()
    with container(rootfs, propagation=0, own_mount=False, with_proc=False, with_dev=False) as pid:
        located = locate(pid, rootfs)
        (rootfs / "proc/driver").mkdir()
        plan = operations(located)
        assert any("shared" in line for line in mountinfo(pid) if str(rootfs) in line)
        apply(located, str(driver_root), plan, LOG)

        assert len(mountinfo(pid)) >= len(before) + 10
        assert mountinfo() == before


@isolated
def test_a_covered_mount_is_made_a_slave_and_its_cover_stays(rootfs: Path) -> None:
    """The path of a covered mount leads to another one, which is not ours to change."""
    place = rootfs / "opt"
    pinned = []
    for _ in ("covered", "cover"):
        injection.mount("shared", place, "tmpfs", 0)
        injection.mount(None, place, None, injection.MS_SHARED)
        pinned.append(Fd(os.open(place, os.O_PATH | os.O_CLOEXEC), str(place)))
    before = mountinfo()
    Propagation(foreign=True, log=LOG).confine(pinned[0], pinned[0])
    changed = [line for line in mountinfo() if line not in before]
    assert len(mountinfo()) == len(before)
    shared = [line for line in mountinfo() if f" {place} " in line and " shared " in line]
    assert len(shared) == 1
    assert len(changed) == 1
