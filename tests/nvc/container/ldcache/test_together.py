"""Several updates of one root at once: containers that an engine starts together from one directory.

They had one name for the cache in the making: of two, one failed ("cannot be replaced").
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import MountError, NvcError
from nvc.base.log import Log
from nvc.base.undo import Undo
from nvc.cdi import hooks
from nvc.container.apply import apply
from nvc.container.ldcache import update
from nvc.container.ldcache.aside import STALE_S, Aside
from nvc.container.ldcache.snapshot import Snapshot
from nvc.container.operations import BindMount
from nvc.linux.fd import Fd
from nvc.linux.root import Root
from tests.nvc.cdi.conftest import enter
from tests.support import injection, leftovers
from tests.support.injection import LIBRARIES, VERSION, container, isolated, locate, mountinfo, operations
from tests.support.isolation import together
from tests.support.racer import Canary

pytestmark = pytest.mark.root
LOG = Log.none()
HOOKS, ROUNDS = 8, 20
BROKEN = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))


def names(rootfs: Path) -> set[str]:
    return {str(path.relative_to(rootfs)) for path in rootfs.rglob("*")}


def configure(driver_root: Path, rootfs: Path) -> None:
    with container(rootfs) as pid:
        apply(locate(pid, rootfs), str(driver_root), operations(locate(pid, rootfs)), LOG)


def cdi_hook(driver_root: Path, rootfs: Path) -> None:
    hooks.update_ldcache(enter(rootfs), ["/usr/lib/driver"], "", LOG)


def known(rootfs: Path) -> dict[str, str]:
    """What the loader's cache says: library -> path."""
    words = ["/sbin/ldconfig", "-p", "-C", str(rootfs / "etc/ld.so.cache")]
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[0]: line.split("=> ")[1] for line in shown if "=> " in line}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("body", [configure, cdi_hook])
def test_all_succeed_and_nothing_is_left(driver_root: Path, tmp_path: Path, body: Callable[..., None]) -> None:
    image = injection.make_rootfs(tmp_path / "image")
    if body is cdi_hook:
        shutil.copytree(driver_root / "usr/lib", image / "usr/lib/driver")
    expected: set[str] | None = None
    for number in range(ROUNDS):
        rootfs = Path(shutil.copytree(image, tmp_path / "rootfs"))
        count = HOOKS if number else 1
        together({str(one): partial(body, driver_root, rootfs) for one in range(count)})
        folder = "/usr/lib/driver" if body is cdi_hook else "/usr/lib64"
        assert {f"{name}.1": f"{folder}/{name}.1" for name in LIBRARIES}.items() <= known(rootfs).items()
        expected = expected or names(rootfs)
        assert names(rootfs) == expected
        shutil.rmtree(rootfs)


def test_one_that_fails_takes_nothing_from_another(driver_root: Path, rootfs: Path, tmp_path: Path) -> None:
    """Undo took away the links that another one's cache names, and the mount points that its mounts are on."""
    at_work, given, undone = (tmp_path / name for name in ("at work", "given", "undone"))

    def wait(path: Path) -> None:
        assert leftovers.until(path.exists, seconds=40), path

    def fail() -> None:
        with container(rootfs) as pid, pytest.MonkeyPatch.context() as patch:
            finish = update.finish

            def wait_and_finish(*arguments: Any) -> bool:
                at_work.touch()
                wait(given)
                return finish(*arguments)

            patch.setattr(update, "finish", wait_and_finish)
            located = locate(pid, rootfs)
            with pytest.raises(MountError):
                apply(located, str(driver_root), (*operations(located), BROKEN), LOG)
        undone.touch()

    def succeed() -> None:
        wait(at_work)
        with container(rootfs) as pid:
            before = mountinfo(pid)
            apply(locate(pid, rootfs), str(driver_root), operations(locate(pid, rootfs)), LOG)
            mounts = mountinfo(pid)
            assert len(mounts) > len(before) + len(LIBRARIES)
            given.touch()
            wait(undone)
            assert mountinfo(pid) == mounts

    together({"bad": fail, "good": succeed})
    assert {f"{name}.1" for name in LIBRARIES} <= known(rootfs).keys()
    for name in LIBRARIES:
        assert os.readlink(rootfs / f"usr/lib64/{name}.1") == f"{name}.{VERSION}"
    assert list((rootfs / "etc").glob("ld.so.cache.*")) == []


class Update:
    """The steps of one that makes one link."""

    def __init__(self, rootfs: Path, root: Root) -> None:
        self._rootfs = rootfs
        self.snapshot = Snapshot(root, ("/usr/lib64",), (0, 0))
        self.snapshot.begin()
        self.cache = self.snapshot.complete(root, ("/usr/lib64",), Undo())

    def run(self) -> None:
        link = self._rootfs / "usr/lib64/libx.so.1"
        if not os.path.lexists(link):
            link.symlink_to("libx.so.1.2")
        (self._rootfs / self.cache[1:]).write_text(self.cache)


@pytest.mark.parametrize("when", ["before", "beside", "ended", "within", "never"])
def test_undo_leaves_what_another_one_uses(rootfs: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Root.open(str(rootfs)) as root:
        others: list[Update] = [Update(rootfs, root)] if when == "before" else []
        ours = Update(rootfs, root)
        ours.run()
        if when in ("beside", "ended"):
            others.append(Update(rootfs, root))
            others[0].run()
        if when == "ended":
            others[0].snapshot.publish()
        if when == "within":
            push = Snapshot._push_restoring

            def push_and_begin(self: Snapshot, undo: Undo) -> None:
                monkeypatch.undo()
                push(self, undo)
                others.append(Update(rootfs, root))
                others[0].run()

            monkeypatch.setattr(Snapshot, "_push_restoring", push_and_begin)
        ours.snapshot.restore()
        assert os.path.lexists(rootfs / "usr/lib64/libx.so.1") == (when != "never")
        if others and when != "ended":
            others[0].run()
            others[0].snapshot.publish()
    assert not others or (rootfs / "etc/ld.so.cache").read_text() == others[0].cache
    assert list((rootfs / "etc").glob("ld.so.cache.*")) == []


AGES = {"old": -STALE_S - 1, "of another clock": STALE_S + 60, "young": -STALE_S + 60}


@pytest.mark.parametrize("age", AGES)
def test_what_a_killed_one_left_is_removed(rootfs: Path, age: str) -> None:
    with Fd(os.open(rootfs / "etc", os.O_RDONLY)) as etc:
        Aside(etc)  # is forgotten
        (left,) = (rootfs / "etc").glob("ld.so.cache.nvc-*")
        for name in ("cache", "cache~"):
            (left / name).touch()
        time = left.stat().st_mtime + AGES[age]
        os.utime(left, (time, time))
        second = Aside(etc)
        assert left.exists() == (age == "young") == second.others()
        second.remove()


def test_what_only_looks_like_it_stays(rootfs: Path) -> None:
    """Of an image: nothing but an empty directory, or one with our two names, is removed."""
    full, link, file = (rootfs / f"etc/ld.so.cache.nvc-{name}" for name in ("full", "link", "file"))
    (full / "more").mkdir(parents=True)
    link.symlink_to("ld.so.conf.d")
    file.touch()
    (rootfs / "etc/ld.so.conf.d/cache").touch()
    for path in (full, file):
        os.utime(path, (0, 0))
    before = names(rootfs)
    with Fd(os.open(rootfs / "etc", os.O_RDONLY)) as etc:
        aside = Aside(etc)
        assert not aside.others()
        aside.remove()
    assert names(rootfs) == before


@pytest.mark.timeout(120)
@isolated
def test_a_neighbour_that_takes_its_place_gains_nothing(driver_root: Path, rootfs: Path, tmp_path: Path) -> None:
    """A process of another container of this root sees the directory, and puts a link to the host, or a FIFO, there."""
    canary = Canary(tmp_path / "host")
    child = os.fork()
    if child == 0:
        try:
            while True:
                for name in os.listdir(rootfs / "etc"):
                    place = rootfs / "etc" / name
                    if not name.startswith("ld.so.cache.nvc-"):
                        continue
                    try:
                        if int(name[-1], 16) % 2:
                            place.rename(rootfs / "tmp" / name)
                            place.symlink_to("../" * 40 + str(canary.place)[1:])
                        else:
                            os.mkfifo(place / "cache")
                    except OSError:
                        pass
        finally:
            os._exit(1)
    outcomes = []
    try:
        for _ in range(40):
            with container(rootfs) as pid:
                before = mountinfo(pid)
                try:
                    *plan, update = operations(locate(pid, rootfs))
                    apply(locate(pid, rootfs), str(driver_root), (*plan, update.replace(limit=1.0)), LOG)
                    outcomes.append("")
                except NvcError as error:
                    outcomes.append(error.message)
                    assert mountinfo(pid) == before
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert any("ld.so.cache" in text or "ldconfig" in text for text in outcomes), outcomes
    canary.check()
