"""Images and neighbours that go for the host while a container is configured: its files, its mounts, its time."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.base import budgets
from nvc.base.errors import LdcacheError, MountError, NvcError
from nvc.base.log import Log
from nvc.base.undo import Undo
from nvc.container.apply import apply, is_foreign
from nvc.container.operations import BindMount, Symlink, UpdateLdcache
from nvc.container.propagation import Propagation
from nvc.linux import mounts
from nvc.linux.fd import Fd
from tests.support import injection
from tests.support.injection import (
    SERVICE,
    container,
    inside,
    isolated,
    kibibytes,
    locate,
    mount,
    mountinfo,
    operations,
    tree,
)

pytestmark = pytest.mark.root
LOG = Log.none()
BROKEN = BindMount("/usr/bin/nvidia-smi", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))
#: More than an image's library directories may have.
MANY = 70_000


def links(directory: Path, count: int) -> None:
    """As fast as it goes: ``count`` links."""
    at = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for index in range(count):
        os.symlink("x", f"l{index}", dir_fd=at)
    os.close(at)


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Meanwhile a neighbour exchanges two names, as fast as it can."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                injection._libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def entered(pid: int) -> Iterator[None]:
    """In the mount namespace of ``pid``, as the container service is."""
    own, theirs = (os.open(f"/proc/{one}/ns/mnt", os.O_RDONLY) for one in ("self", pid))
    injection.check(ctypes.CDLL(None, use_errno=True).setns(theirs, 0), "setns")
    try:
        yield
    finally:
        injection.check(ctypes.CDLL(None, use_errno=True).setns(own, 0), "setns")
        os.close(own)
        os.close(theirs)


@pytest.mark.parametrize("name", ["usr/lib64", "opt/listed"])
def test_a_directory_with_too_many_names_changes_nothing(driver_root: Path, rootfs: Path, name: str) -> None:
    """Millions of links in a library directory: they are read, kept, and put back."""

    @isolated
    def check() -> None:
        mount("tmpfs", rootfs.parent, "tmpfs", 0)
        injection.make_rootfs(rootfs)
        (rootfs / name).mkdir(exist_ok=True)
        links(rootfs / name, MANY)
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            *plan, update = operations(located)
            assert isinstance(update, UpdateLdcache)
            update = update.replace(directories=(*update.directories, f"/{name}"))
            before = mountinfo(pid), sorted(os.listdir(rootfs / "usr")), len(os.listdir(rootfs / name))
            with pytest.raises(LdcacheError) as caught:
                apply(located, str(driver_root), (*plan, update), LOG)
            assert "65536" in caught.value.message
            assert (mountinfo(pid), sorted(os.listdir(rootfs / "usr")), len(os.listdir(rootfs / name))) == before

    check()


def test_the_texts_of_links_are_bounded_too(driver_root: Path, rootfs: Path) -> None:
    """Few links, each of them as long as a path may be."""

    @isolated
    def check() -> None:
        before_kib = kibibytes("VmRSS")
        mount("tmpfs", rootfs.parent, "tmpfs", 0)
        injection.make_rootfs(rootfs)
        at = os.open(rootfs / "usr/lib64", os.O_RDONLY)
        for index in range(20_000):
            os.symlink("x" * 4095, f"l{index}", dir_fd=at)
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            before = mountinfo(pid)
            with pytest.raises(LdcacheError):
                apply(located, str(driver_root), operations(located), LOG)
            assert mountinfo(pid) == before
            assert (kibibytes("VmHWM") - before_kib << 10) + SERVICE < budgets.CONTAINER.memory

    check()


@isolated
def test_undo_unmounts_first_and_within_two_seconds(driver_root: Path, rootfs: Path) -> None:
    """As many links as an image may have, all of them changed meanwhile, and a failure at the end."""
    mount("tmpfs", rootfs.parent, "tmpfs", 0)
    injection.make_rootfs(rootfs)
    for index in range(6):
        directory = rootfs / f"opt/{index}"
        directory.mkdir()
        links(directory, 10_000)
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        *plan, update = operations(located)
        assert isinstance(update, UpdateLdcache)
        update = update.replace(directories=(*update.directories, *(f"/opt/{index}" for index in range(6))))
        before = mountinfo(pid)
        watcher = os.fork()
        if watcher == 0:
            # A neighbour removes the links as soon as something is mounted: all of them are to be put back.
            while mountinfo(pid) == before:
                time.sleep(0.001)
            for index in range(6):
                for name in os.listdir(rootfs / f"opt/{index}"):
                    os.unlink(rootfs / f"opt/{index}/{name}")
            os._exit(0)
        errors: list[float] = []

        class Noted(Log):
            def error(self, text: str) -> None:
                errors.append(time.monotonic())

        with pytest.raises(NvcError):
            apply(located, str(driver_root), (*plan, update, BROKEN), Noted())
        os.waitpid(watcher, 0)
        assert mountinfo(pid) == before


def volume(rootfs: Path, place: str) -> Path:
    """A volume that the host shares with the container: mounts in it appear on both sides."""
    source = rootfs.parent / "volume"
    source.mkdir()
    mount(str(source), source, None, injection.MS_BIND)
    mount(None, source, None, injection.MS_SHARED)
    (rootfs / place).mkdir(parents=True, exist_ok=True)
    mount(str(source), rootfs / place, None, injection.MS_BIND)
    return source


@isolated
def test_nothing_is_mounted_on_the_host_from_a_covered_shared_volume(rootfs: Path) -> None:
    """What has the path of the volume is another mount: by its name the volume cannot be made a slave."""
    source = volume(rootfs, "opt/volume")
    (source / "target").mkdir()
    with container(rootfs, propagation=0, own_mount=False, with_proc=False, with_dev=False) as pid:
        before = mountinfo()
        tmpfs = mounts.new_tmpfs(mode=0o755, source="attack")
        with entered(pid), Undo() as undo:
            target = Fd(os.open(rootfs / "opt/volume/target", os.O_PATH | os.O_CLOEXEC), "target")
            mount("cover", rootfs / "opt", "tmpfs", 0)
            (rootfs / "opt/volume").mkdir()
            try:
                Propagation(foreign=True, log=LOG).confine(target, target)
                mounts.attach(tmpfs, target, undo)
            except OSError:
                pass
            undo.commit()
        assert [line for line in mountinfo() if line not in before] == []


@isolated
def test_nothing_is_mounted_on_a_shared_volume_where_the_namespace_is_unknown(
    rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/1 may not tell whether a hook inside the container is in the host's namespace."""

    def stat(path: object, **options: object) -> os.stat_result:
        if path == "/proc/1/ns/mnt":
            raise PermissionError(13, "denied")
        return real(path, **options)  # type: ignore[arg-type]

    real = os.stat
    monkeypatch.setattr(os, "stat", stat)
    assert is_foreign() is None
    source = volume(rootfs, "opt/volume")
    target = Fd(os.open(source, os.O_PATH | os.O_CLOEXEC), "target")
    with pytest.raises(OSError, match="shared mount"):
        Propagation(foreign=is_foreign(), log=LOG).confine(target, target)


def test_nothing_is_mounted_on_the_host_while_the_way_to_a_volume_is_exchanged(
    driver_root: Path, rootfs: Path, tmp_path: Path
) -> None:
    """The way to a volume that is shared with the host: two directories that a neighbour exchanges."""

    @isolated
    def check() -> None:
        for name in ("a", "b"):
            (rootfs / f"opt/{name}/volume").mkdir(parents=True)
        volume(rootfs, "opt/a/volume")
        plain = BindMount("/usr/bin/nvidia-smi", "/opt/{}/volume/smi", "regular", ("ro",))
        done = 0
        for _ in range(60):
            with (
                container(rootfs, propagation=0, own_mount=False, with_proc=False, with_dev=False) as pid,
                exchanging(rootfs / "opt/a", rootfs / "opt/b"),
            ):
                before = [line for line in mountinfo() if "nvidia-smi" in line]
                assert before == []
                for name in ("a", "b"):
                    try:
                        located = locate(pid, rootfs)
                        operation = plain.replace(container_path=plain.container_path.format(name))
                        apply(located, str(driver_root), (operation,), LOG)
                        done += 1
                    except NvcError:
                        pass
                assert [line for line in mountinfo() if "nvidia-smi" in line] == []
        assert done

    check()


@pytest.mark.parametrize(
    "operation",
    [
        BindMount("/usr/bin/nvidia-smi", "/usr/data/nvidia-smi", "regular", ("ro",)),
        BindMount("/usr/lib/fw", "/usr/data/some/firmware", "directory", ("ro",)),
        Symlink("/usr/data/libcuda.so", "libcuda.so.1"),
    ],
    ids=["file", "directory", "link"],
)
def test_an_image_makes_nothing_in_a_volume(driver_root: Path, rootfs: Path, operation: BindMount | Symlink) -> None:
    """A link of the image where the driver's files go, and a volume of the user's where it leads."""

    @isolated
    def check() -> None:
        data = rootfs.parent / "data"
        data.mkdir()
        (data / "precious").write_text("of the host")
        (rootfs / "volume").mkdir()
        mount(str(data), rootfs / "volume", None, injection.MS_BIND)
        (rootfs / "usr/data").symlink_to("/volume")
        with container(rootfs) as pid:
            before = tree(data)
            with pytest.raises(MountError) as caught:
                apply(locate(pid, rootfs), str(driver_root), (operation,), LOG)
            assert "volume" in caught.value.hint
            assert tree(data) == before

    check()


@isolated
def test_a_volume_where_the_driver_goes_is_used(driver_root: Path, rootfs: Path) -> None:
    """The container's configuration names it: mount points are made in it, and the log says so."""
    data = rootfs.parent / "data"
    data.mkdir()
    (rootfs / "usr/data").mkdir()
    mount(str(data), rootfs / "usr/data", None, injection.MS_BIND)
    said: list[str] = []

    class Kept(Log):
        def warn(self, text: str) -> None:
            said.append(text)

    with container(rootfs) as pid:
        operation = BindMount("/usr/bin/nvidia-smi", "/usr/data/nvidia-smi", "regular", ("ro",))
        assert apply(locate(pid, rootfs), str(driver_root), (operation,), Kept()) == 1
        assert inside(pid, rootfs, "/usr/data/nvidia-smi").read_text()
    assert [line for line in said if "/usr/data" in line and "stays" in line]


def test_a_file_that_never_ends_holds_no_start(driver_root: Path, rootfs: Path) -> None:
    """A FIFO that the configuration includes: ldconfig opens it, and waits."""

    @isolated
    def check() -> None:
        os.mkfifo(rootfs / "etc/ld.so.conf.d/wait.conf")
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            *plan, update = operations(located)
            assert isinstance(update, UpdateLdcache)
            before, start = mountinfo(pid), time.monotonic()
            with pytest.raises(LdcacheError):
                apply(located, str(driver_root), (*plan, update.replace(limit=1.0)), LOG)
            assert time.monotonic() - start < 3
            assert mountinfo(pid) == before

    check()


@pytest.mark.parametrize("is_in_time", [True, False], ids=["before it is looked up", "after"])
def test_a_users_bundle_whose_root_becomes_a_link(driver_root: Path, tmp_path: Path, is_in_time: bool) -> None:
    """An engine of root's starts a bundle in a directory of a user, who makes a link of its root: to a directory of the
    host's, or of another container.
    """
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    rootfs = injection.make_rootfs(home / "rootfs")
    os.chown(home, 1000, 1000)
    before = tree(outside)

    def replace() -> None:
        rootfs.rename(home / "before")
        rootfs.symlink_to(outside)
        os.lchown(rootfs, 1000, 1000)

    @isolated
    def run() -> None:
        with container(rootfs) as pid:
            if is_in_time:
                replace()
            with pytest.raises(NvcError, match=r"path error|replaced by another"):
                located = locate(pid, rootfs)
                if not is_in_time:
                    replace()
                apply(located, str(driver_root), operations(located), LOG)

    run()
    assert tree(outside) == before
