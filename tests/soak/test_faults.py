"""Images, disks and file systems that are broken in every way, in turn: a start fails in time and leaves nothing.

What is at fault is under every name that is opened below a container's root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nvc.base import budgets
from nvc.base.errors import NvcError
from nvc.base.log import Log
from nvc.container import service
from nvc.container.apply import apply
from nvc.container.messages import ApplyRequest, ContainerConfig, InspectRequest
from tests.support import fuse, injection
from tests.support.bundle import Container, write
from tests.support.injection import container, isolated, locate, mount, mountinfo, operations
from tests.support.isolation import in_namespaces, together
from tests.support.launchers import CHECKOUT
from tests.support.racer import FILES, NAMES, TRAPS, Canary
from tests.support.soaked import RACED

if TYPE_CHECKING:
    from nvc.container.operations import Operation

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
    """Every name and what it is."""
    return {str(path.relative_to(rootfs)): path.lstat().st_mode for path in rootfs.rglob("*")}


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


def root_with(place: Path, name: str) -> Path:
    """A root where ``name`` is a directory, or a file where it should be one."""
    rootfs = injection.make_rootfs(place)
    target = rootfs / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(target):
        target.touch() if name in FILES else target.mkdir()
    return rootfs


def plan_of(place: Path) -> tuple[Operation, ...]:
    """As for a root that answers."""
    return operations(locate(None, injection.make_rootfs(place)))


def ends_in_time(pid: int, rootfs: Path, driver_root: Path, plan: tuple[Operation, ...]) -> bool:
    """Whether a configure gave all. It ended within the budget, also where it waits, and left no process."""
    start = time.monotonic()
    client = service.start(deadline=1.0, log=LOG)
    helper = client._client.pid
    try:
        client.inspect(InspectRequest(ContainerConfig(pid, str(rootfs)), True, False, False))
        client.apply(ApplyRequest(str(driver_root), plan), deadline=1.5)
        return True
    except NvcError as error:
        assert error.stage
        return False
    finally:
        client.close()
        assert time.monotonic() - start < budgets.START_S
        assert not os.path.exists(f"/proc/{helper}")


def test_file_systems_that_do_not_answer(driver_root: Path, tmp_path: Path) -> None:
    """A volume of a user's under every name that is opened, the names at once: each waits."""
    fuse.needed()
    plan = plan_of(tmp_path / "clean")

    def run(name: str, rootfs: Path) -> None:
        with fuse.mounted(rootfs / name), container(rootfs) as pid:
            ends_in_time(pid, rootfs, driver_root, plan)

    roots = {name: root_with(tmp_path / f"rootfs{index}", name) for index, name in enumerate(RACED)}
    together({name: partial(run, name, rootfs) for name, rootfs in roots.items()})


@pytest.mark.parametrize("seconds", [0.05, 2.0])
def test_file_systems_that_answer_late(driver_root: Path, tmp_path: Path, seconds: float) -> None:
    """What answers soon enough is waited for; what takes seconds is not."""
    fuse.needed()
    plan = plan_of(tmp_path / "clean")

    def run(name: str, rootfs: Path) -> None:
        with fuse.slow(rootfs / name, seconds), container(rootfs) as pid:
            is_done = ends_in_time(pid, rootfs, driver_root, plan)
            # Nothing can be made there.
            assert not is_done or name not in ("usr/lib64", "usr/bin") or seconds < 1

    names = [name for name in RACED if name not in FILES]
    roots = {name: root_with(tmp_path / f"rootfs{index}", name) for index, name in enumerate(names)}
    together({name: partial(run, name, rootfs) for name, rootfs in roots.items()})


HOOKS = {
    "update-ldcache": ("--folder=/usr/lib64",),
    "create-symlinks": ("--link=libx.so.1::/usr/lib64/libx.so",),
    "enable-cuda-compat": ("--host-driver-version=535.104",),
    "chmod": ("--mode=755", "--path=/usr/lib64"),
}


def test_hooks_of_cdi_specifications_end_in_time(tmp_path: Path) -> None:
    """No engine gives them a limit: one that met a file system that does not answer was waited for without end."""
    fuse.needed()
    program = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from hook.cdi import run; run()"

    def run(hook: str, name: str, rootfs: Path) -> None:
        bundle = write(rootfs.parent / f"{rootfs.name}.bundle", Container(rootfs, ["/bin/true"]))
        state = json.dumps({"ociVersion": "1.0", "id": "c", "status": "creating", "pid": 0, "bundle": str(bundle)})
        mount(str(rootfs), rootfs, None, injection.MS_BIND)
        with fuse.mounted(rootfs / name):
            start = time.monotonic()
            words = [sys.executable, "-c", program, hook, *HOOKS[hook], "--timeout=1"]
            done = subprocess.run(words, input=state, capture_output=True, text=True, timeout=30, check=False)
            assert time.monotonic() - start < budgets.START_S
            assert done.returncode == 0 or "error: " in done.stderr, done.stderr
            if name == "usr/lib64" and hook != "enable-cuda-compat":
                # The worker, or its ldconfig, whichever is at its end first.
                assert "no answer in" in done.stderr or "did not end within" in done.stderr, done.stderr

    pairs = [(hook, name) for hook in HOOKS for name in ("etc", "usr/lib64", "var/cache/ldconfig", "usr/local")]
    roots = {pair: root_with(tmp_path / f"rootfs{index}", pair[1]) for index, pair in enumerate(pairs)}
    together({f"{hook}, {name}": partial(run, hook, name, rootfs) for (hook, name), rootfs in roots.items()})


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
