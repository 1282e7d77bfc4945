"""Whatever fails, the error says what, and the container is as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.base.errors import LdcacheError, MountError
from nvc.base.log import Log
from nvc.container.apply import apply
from nvc.container.operations import BindMount, Symlink
from tests.support import injection
from tests.support.injection import VERSION, container, isolated, locate, mountinfo, operations, tree

pytestmark = pytest.mark.root
LOG = Log.none()
BROKEN = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))


@pytest.mark.parametrize("position", range(12))
def test_failure_at_any_step_leaves_the_container_as_it_was(driver_root: Path, rootfs: Path, position: int) -> None:
    @isolated
    def run() -> None:
        (rootfs / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.470")
        (rootfs / "etc/ld.so.cache").write_text("old cache")
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            plan = operations(located)
            assert position < len(plan)
            mounts, files, processes = mountinfo(pid), tree(rootfs), children()
            with pytest.raises(MountError) as caught:
                apply(located, str(driver_root), (*plan[:position], BROKEN, *plan[position:]), LOG)

            assert caught.value.message == f"file creation failed: {rootfs}{BROKEN.container_path}: not a directory"
            assert mountinfo(pid) == mounts
            assert tree(rootfs) == files
            # ldconfig's process, which waited for the mounts, is gone too.
            assert children() == processes

    run()


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.parametrize("owner", [0, 100_000])
def test_failure_after_the_cache_was_updated_restores_it(driver_root: Path, rootfs: Path, owner: int) -> None:
    @isolated
    def run() -> None:
        (rootfs / "usr/lib64/libcuda.so.1").symlink_to("libcuda.so.470")
        (rootfs / "etc/ld.so.cache").write_text("old cache")
        (rootfs / "etc/ld.so.cache").chmod(0o640)
        for path in (rootfs, *rootfs.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            located.container = located.container.replace(owner_uid=owner, owner_gid=owner)
            mounts, files = mountinfo(pid), tree(rootfs)
            with pytest.raises(MountError):
                apply(located, str(driver_root), (*operations(located), BROKEN), LOG)

            assert mountinfo(pid) == mounts
            assert tree(rootfs) == files

    run()


@isolated
def test_a_signal_in_the_middle_takes_everything_back(driver_root: Path, rootfs: Path) -> None:
    class Interrupt(BaseException):
        pass

    class Interrupting(Log):
        def info(self, text: str) -> None:
            raise Interrupt

        @property
        def enabled(self) -> bool:
            return True

    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts, files = mountinfo(pid), tree(rootfs)
        kept = Symlink("/etc/ld.so.conf", "x")  # in effect already, which is logged
        with pytest.raises(Interrupt):
            apply(located, str(driver_root), (*operations(located, cache=False), kept), Interrupting())

        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@isolated
def test_a_container_on_its_own_read_only_file_system_is_told_so(driver_root: Path, rootfs: Path) -> None:
    _make_read_only(rootfs)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts = mountinfo(pid)
        with pytest.raises(MountError) as caught:
            apply(located, str(driver_root), operations(located, capabilities="utility"), LOG)

        assert "file creation failed: " in caught.value.message
        assert caught.value.message.endswith("read-only file system")
        assert "root.readonly" in caught.value.hint
        assert mountinfo(pid) == mounts


@isolated
def test_read_only_is_no_obstacle_where_the_targets_exist(driver_root: Path, rootfs: Path) -> None:
    for name in (f"usr/lib64/libnvidia-ml.so.{VERSION}", "usr/bin/nvidia-smi", "lib/fw/gsp.bin"):
        (rootfs / name).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / name).touch()
    (rootfs / "run/nvidia-persistenced").mkdir(parents=True)
    _make_read_only(rootfs)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        plan = operations(located, capabilities="utility", cache=False)

        assert apply(located, str(driver_root), plan, LOG) == len(plan)
        with pytest.raises(LdcacheError) as caught:
            apply(located, str(driver_root), operations(located)[-1:], LOG)
        assert "root.readonly" in caught.value.hint


def _make_read_only(rootfs: Path) -> None:
    injection.mount(str(rootfs), rootfs, None, injection.MS_BIND)
    injection.mount(None, rootfs, None, injection.MS_BIND | 0x20 | 1)


@isolated
def test_a_full_disk_is_told_and_undone(driver_root: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    injection.mount("tmpfs", disk, "tmpfs", 0, "size=1m,nr_inodes=26")
    rootfs = injection.make_rootfs(disk / "rootfs")
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        mounts, files = mountinfo(pid), tree(rootfs)
        with pytest.raises((MountError, LdcacheError)) as caught:
            apply(located, str(driver_root), operations(located), LOG)

        assert "full" in caught.value.hint
        assert mountinfo(pid) == mounts
        assert tree(rootfs) == files


@isolated
def test_wrong_kinds_in_the_image_are_clear_errors(driver_root: Path, rootfs: Path) -> None:
    (rootfs / f"usr/lib64/libcuda.so.{VERSION}").mkdir()
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        with pytest.raises(MountError) as caught:
            apply(located, str(driver_root), operations(located), LOG)

        assert caught.value.message == f"file creation failed: {rootfs}/usr/lib64/libcuda.so.{VERSION}: is a directory"
        assert caught.value.hint == "the image has a directory where a file goes"


SOURCES = [
    pytest.param(
        BindMount("/dev/nvidia0", "/dev/x", "device", ("ro",), 195, 0), "invalid device node: /dev/nvidia0", id="number"
    ),
    pytest.param(
        BindMount("/usr/bin/nvidia-smi", "/dev/x", "device", ("ro",), 1, 3),
        "invalid device node: /usr/bin/nvidia-smi",
        id="file for a node",
    ),
    pytest.param(
        BindMount("/usr/lib", "/x", "regular", ("ro",)),
        "unexpected source file mode 40755 for /usr/lib",
        id="directory",
    ),
    pytest.param(
        BindMount("/usr/bin/nvidia-smi", "/x", "endpoint", ()),
        "unexpected source file mode 100755 for /usr/bin/nvidia-smi",
        id="file for a socket",
    ),
    pytest.param(
        BindMount("/dev/gone", "/x", "device", ("ro",), 1, 1),
        "stat failed: /dev/gone: no such file or directory",
        id="missing",
    ),
]


@pytest.mark.parametrize(("operation", "message"), SOURCES)
def test_sources_are_checked_before_anything_is_done(
    driver_root: Path, rootfs: Path, operation: BindMount, message: str
) -> None:
    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            mounts = mountinfo(pid)
            with pytest.raises(MountError) as caught:
                apply(located, str(driver_root), (*operations(located), operation), LOG)
            assert caught.value.message == message
            assert mountinfo(pid) == mounts

    run()


@isolated
def test_missing_optional_source_is_passed_over(driver_root: Path, rootfs: Path) -> None:
    gone = BindMount("/run/gone/socket", "/run/gone/socket", "endpoint", (), optional=True)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)

        assert apply(located, str(driver_root), (gone,), LOG) == 0
        assert not (rootfs / "run").exists()
