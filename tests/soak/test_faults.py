"""Images, disks and file systems that are broken in every way, in turn: a start fails in time and leaves nothing.

What is at fault is under every name that is opened below a container's root.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.base import budgets
from nvc.base.errors import NvcError
from nvc.base.log import Log
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from tests.support import fuse, injection
from tests.support.injection import container, isolated, locate, mount, mountinfo, operations
from tests.support.isolation import in_namespaces
from tests.support.racer import NAMES, TRAPS, Canary

pytestmark = pytest.mark.root
LOG = Log.none()
#: For ldconfig; what fails for a reason of the image has no other wait, and some time for undo.
LIMIT, SECONDS = 1.0, 4.0


def put(rootfs: Path, name: str, make: Callable[[Path], object]) -> None:
    place = rootfs / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()
    make(place)


def kinds(rootfs: Path) -> dict[str, int]:
    """Every name and what it is, but those that are ldconfig's and ours for what is not finished."""
    found = {str(path.relative_to(rootfs)): path.lstat().st_mode for path in rootfs.rglob("*")}
    return {name: mode for name, mode in found.items() if not name.startswith("etc/ld.so.cache.nvc")}


def configured(rootfs: Path, driver_root: Path, **options: bool) -> bool:
    """Whether a configure gave all; if not, it left neither mount nor name, and took no longer than it may."""
    with container(rootfs, **options) as pid:
        before, names, start = mountinfo(pid), kinds(rootfs), time.monotonic()
        try:
            located = locate(pid, rootfs)
            *plan, update = operations(located)
            # A FIFO that the image's configuration includes is met by ldconfig alone.
            apply(located, str(driver_root), (*plan, update.replace(limit=LIMIT)), LOG)
            return True
        except NvcError:
            assert time.monotonic() - start < SECONDS
            assert mountinfo(pid) == before
            assert kinds(rootfs) == names
            return False


@pytest.mark.parametrize("trap", TRAPS)
def test_under_every_name(driver_root: Path, tmp_path: Path, trap: str) -> None:
    canary = Canary(tmp_path / "host")

    def run() -> None:
        host = mountinfo()
        given = 0
        roots = {name: injection.make_rootfs(tmp_path / f"rootfs{index}") for index, name in enumerate(NAMES)}
        for name, rootfs in roots.items():
            (rootfs / "run").mkdir()
            put(rootfs, name, lambda place: TRAPS[trap](place, canary.place))
        for name, rootfs in roots.items():
            given += configured(rootfs, driver_root, with_proc=name != "proc", with_dev=name != "dev")
            assert mountinfo() == host
        # Most names are not needed, or are replaced: a bed in which all fails would hold nothing.
        assert given > 3

    in_namespaces(run)
    canary.check()


@pytest.mark.parametrize("option", ["size={}k", "nr_inodes={}"])
def test_a_disk_that_is_full(driver_root: Path, tmp_path: Path, option: str) -> None:
    """Full at each step in turn: blocks, then inodes."""

    @isolated
    def run() -> None:
        outcomes = []
        for room in (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 32, 64):
            place = tmp_path / "disk"
            place.mkdir(exist_ok=True)
            mount("tmpfs", place, "tmpfs", 0, "size=64m")
            rootfs = injection.make_rootfs(place / "rootfs")
            (rootfs / "run").mkdir()
            used = os.statvfs(place)
            blocks = (used.f_blocks - used.f_bfree) * used.f_frsize >> 10
            number = blocks + 4 * room if "size" in option else used.f_files - used.f_ffree + room
            mount("tmpfs", place, "tmpfs", MS_REMOUNT, option.format(max(number, 1)))
            outcomes.append(configured(rootfs, driver_root))
            injection.check(injection._libc.umount2(os.fsencode(place), MNT_DETACH), "umount")
        assert False in outcomes
        assert outcomes[-1]

    run()


MS_REMOUNT, MNT_DETACH = 32, 2


@contextmanager
def dead(place: Path) -> Iterator[None]:
    """A file system that answers nothing, as a user's may: every look into it waits."""
    device = os.open(fuse.DEVICE, os.O_RDWR | os.O_CLOEXEC)
    mount("dead", place, "fuse", 0, f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other")
    try:
        yield
    finally:
        os.close(device)


@pytest.mark.parametrize("name", ["usr/lib64", "etc", "var/cache/ldconfig", "usr/bin"])
def test_a_file_system_that_does_not_answer(driver_root: Path, rootfs: Path, name: str) -> None:
    """A volume: the start fails within its budget, whatever the helper waits for, and no process is left."""
    fuse.needed()

    @isolated
    def run() -> None:
        (rootfs / name).mkdir(exist_ok=True, parents=True)
        with dead(rootfs / name), container(rootfs) as pid:
            start = time.monotonic()
            client = service.start(deadline=1.0, log=LOG)
            helper = client._client.pid
            with pytest.raises(NvcError):
                client.inspect(InspectRequest(ContainerConfig(pid, str(rootfs)), True, False, False))
                located = locate(pid, rootfs) if name != "etc" else None
                assert located is not None
                client.apply(ApplyRequest(str(driver_root), operations(located)), deadline=1.0)
            client.close()
            assert time.monotonic() - start < budgets.START_S
            assert not os.path.exists(f"/proc/{helper}")

    run()


@pytest.mark.parametrize("name", ["usr/lib64", "etc/ld.so.conf.d", "etc", "var/cache/ldconfig", "usr/bin"])
def test_a_directory_with_very_many_names(driver_root: Path, rootfs: Path, name: str) -> None:
    @isolated
    def run() -> None:
        mount("tmpfs", rootfs.parent, "tmpfs", 0)
        injection.make_rootfs(rootfs)
        (rootfs / name).mkdir(exist_ok=True, parents=True)
        at = os.open(rootfs / name, os.O_RDONLY)
        for index in range(100_000):
            os.symlink("x", f"{index}.conf", dir_fd=at)
        with container(rootfs) as pid:
            before, start = mountinfo(pid), time.monotonic()
            try:
                located = locate(pid, rootfs)
                apply(located, str(driver_root), operations(located), LOG)
            except NvcError:
                assert mountinfo(pid) == before
            assert time.monotonic() - start < budgets.START_S

    run()
