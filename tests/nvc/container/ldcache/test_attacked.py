"""Images that go for the host by way of its ldconfig: its memory, its disk, its time, its rights over devices."""

from __future__ import annotations

import os
import resource
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import LdcacheError, MountError
from nvc.base.undo import Undo
from nvc.container.apply import apply
from nvc.container.ldcache import snapshot as ldcache_snapshot
from nvc.container.ldcache.snapshot import Snapshot
from nvc.container.ldcache.update import OPENED
from nvc.container.operations import BindMount, UpdateLdcache
from nvc.linux import syscalls
from nvc.linux.root import Root
from tests.support import injection
from tests.support.injection import container, isolated, locate, mount, tree
from tests.support.ldconfig import Kept, run

pytestmark = pytest.mark.root
OLD_KERNELS = {
    "5.11": {"mount_setattr"},
    "5.1": {"mount_setattr", "open_tree", "move_mount", "fsopen"},
}
WAYS = ["now", "in Python", "standing by", "no pivot", *OLD_KERNELS]
SPARSE = 8 << 30
BROKEN = BindMount("/bin/sh", "/etc/ld.so.conf/below-a-file", "regular", ("ro",))
UPDATE = UpdateLdcache("/sbin/ldconfig", ("/usr/lib64",), False, 20.0)


def sparse(path: Path, size: int = SPARSE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(size)


def attacked(rootfs: Path, program: Path | str, *directories: str, way: str, limit: float = 20.0) -> list[str]:
    if way in OLD_KERNELS:
        syscalls.unavailable.update(OLD_KERNELS[way])
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        return run(located, program, *directories, way=way, no_pivot=way == "no pivot", limit=limit)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_no_device_and_no_program_of_the_image(probe: Path, rootfs: Path, way: str) -> None:
    """/dev/mem as /opt/node: the container's device cgroup holds it, and not a process of the host's in its files."""
    os.mknod(rootfs / "opt/node", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (rootfs / "opt/file").write_text("text")
    (rootfs / "srv").mkdir()

    @isolated
    def check() -> None:
        # One that a second one covers, with a third below it that no path leads to, and one in plain sight.
        for place in ("srv/hidden", "srv"):
            (rootfs / place).mkdir(exist_ok=True)
            mount("tmpfs", rootfs / place, "tmpfs", 0)
        mount("tmpfs", rootfs / "srv", "tmpfs", 0)
        os.mknod(rootfs / "srv/node", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        seen = attacked(rootfs, probe, "/open", "/opt/file", "/opt/node", "/srv/node", way=way)
        opened = [line for line in seen if line.startswith("open=")]
        assert opened == ["open=/opt/file 0", "open=/opt/node 13", "open=/srv/node 13"]  # EACCES
        lines = [line.split() for line in seen if line.startswith("mount-line=")]
        options = {fields[4]: set(fields[5].split(",")) for fields in lines if fields[4] != "/srv/hidden"}
        assert options.keys() >= {"/", "/srv", "/dev", "/proc", "/sys"}
        assert [point for point, words in options.items() if not words >= {"nodev", "nosuid", "noexec"}] == []

    check()


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_configuration_without_line_ends(rootfs: Path, way: str) -> None:
    sparse(rootfs / "etc/ld.so.conf", 400 << 20)

    @isolated
    def check() -> None:
        start = time.monotonic()
        attacked(rootfs, "/sbin/ldconfig", way=way)
        assert time.monotonic() - start < 10
        # kB, of the largest child: the process that was forked is one of them.
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 300 << 10
        # getline() fails, which is the end of the file to ldconfig.
        assert (rootfs / "etc/ld.so.cache").stat().st_size

    check()


def fifo(rootfs: Path) -> None:
    (rootfs / "etc/ld.so.conf").unlink()
    os.mkfifo(rootfs / "etc/ld.so.conf")


def link_to_fifo(rootfs: Path) -> None:
    (rootfs / "etc/ld.so.conf").unlink()
    os.mkfifo(rootfs / "opt/fifo")
    (rootfs / "etc/ld.so.conf").symlink_to("/opt/../opt/fifo")


@pytest.mark.parametrize("make", [fifo, link_to_fifo])
def test_a_configuration_that_never_ends(rootfs: Path, make: Callable[[Path], None]) -> None:
    make(rootfs)

    @isolated
    def check() -> None:
        start = time.monotonic()
        with pytest.raises(LdcacheError) as caught:
            attacked(rootfs, "/sbin/ldconfig", way="now", limit=5.0)
        assert "/etc/ld.so.conf is a FIFO" in caught.value.message
        assert time.monotonic() - start < 4

    check()


@pytest.mark.parametrize("path", OPENED)
@isolated
def test_no_file_that_ldconfig_opens_makes_it_wait(rootfs: Path, path: str) -> None:
    (rootfs / path[1:]).unlink(missing_ok=True)
    (rootfs / path[1:]).parent.mkdir(exist_ok=True)
    os.mkfifo(rootfs / path[1:])
    start = time.monotonic()
    with pytest.raises(LdcacheError) as caught:
        attacked(rootfs, "/sbin/ldconfig", way="now", limit=5.0)
    assert f"{path} is a FIFO" in caught.value.message
    assert time.monotonic() - start < 4


@isolated
def test_undo_goes_on_where_a_name_of_ours_is_a_directory(rootfs: Path) -> None:
    """What could not be removed kept the links of ldconfig from being put back."""
    (rootfs / "etc/ld.so.cache/full").mkdir(parents=True)
    (rootfs / "var/cache/ldconfig/aux-cache/full").mkdir(parents=True)
    injection.build_library(rootfs / "usr/lib64/libx.so.1.2", "libx.so")
    with container(rootfs) as pid:
        located = locate(pid, rootfs)
        before = listing(rootfs)
        with pytest.raises(LdcacheError):
            run(located, "/sbin/ldconfig")
        assert listing(rootfs) == before


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFSOCK, stat.S_IFDIR])
def test_what_ldconfig_passes_over_is_no_failure(rootfs: Path, kind: int) -> None:
    """/etc/ld.so.conf may be a link to /dev/null, which is not there for ldconfig."""
    (rootfs / "etc/ld.so.conf").unlink()
    if kind == stat.S_IFDIR:
        (rootfs / "etc/ld.so.conf").mkdir()
    else:
        os.mknod(rootfs / "etc/ld.so.conf", kind | 0o666, os.makedev(1, 5) if kind == stat.S_IFCHR else 0)

    @isolated
    def check() -> None:
        attacked(rootfs, "/sbin/ldconfig", way="now")
        assert (rootfs / "etc/ld.so.cache").stat().st_size

    check()


def small_disk(rootfs: Path, size: str) -> Path:
    """The same root on a file system of its own."""
    mount("tmpfs", rootfs.parent, "tmpfs", 0, f"size={size}")
    return injection.make_rootfs(rootfs)


def used(rootfs: Path) -> int:
    found = os.statvfs(rootfs)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.parametrize("name", ["etc/ld.so.cache", "var/cache/ldconfig/aux-cache"])
def test_undo_copies_no_holes(tmp_path: Path, name: str) -> None:
    """8 GiB that take no room: copied, they fill the disk of the host."""
    rootfs = tmp_path / "small/rootfs"
    rootfs.parent.mkdir()

    @isolated
    def check() -> None:
        small_disk(rootfs, "64m")
        sparse(rootfs / name)
        injection.build_library(rootfs / "usr/lib64/libx.so.1.2", "libx.so")
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            names, before, start = listing(rootfs), used(rootfs), time.monotonic()
            inode = (rootfs / "etc/ld.so.cache").stat().st_ino if "ld.so.cache" in name else 0
            log = Kept()
            with pytest.raises(MountError):
                apply(located, "/", (UPDATE, BROKEN), log)
            assert time.monotonic() - start < 10
            assert used(rootfs) <= before + (1 << 20)
            if inode:
                assert listing(rootfs) == names
                assert (rootfs / "etc/ld.so.cache").stat().st_ino == inode
            else:
                # What ldconfig had replaced already, and is too large to be a table of libraries, is made anew by it.
                assert names - listing(rootfs) <= {name}
                assert listing(rootfs) <= names

    check()


def listing(rootfs: Path) -> set[str]:
    return {
        str(Path(directory, name).relative_to(rootfs))
        for directory, directories, files in os.walk(rootfs)
        for name in directories + files
    }


@isolated
def test_a_full_disk_keeps_the_cache_and_no_rest(rootfs: Path) -> None:
    # Made with room, filled to the last block afterwards.
    place = small_disk(rootfs / "tmp/small/rootfs", "2m") if (rootfs / "tmp/small").mkdir() is None else rootfs
    (place / "etc/ld.so.cache").write_bytes(b"old cache")
    with container(place) as pid:
        located = locate(pid, place)
        with open(place / "opt/filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        before = tree(place)
        with pytest.raises(LdcacheError) as caught:
            run(located, "/sbin/ldconfig")
        assert "full" in caught.value.hint
        assert tree(place) == before


@isolated
def test_a_cache_that_would_be_large_is_not_written(rootfs: Path) -> None:
    """RLIMIT_FSIZE: names of libraries may be long, and there may be many."""
    injection.build_library(rootfs / "opt/lib.so", "liblong.so")
    for index in range(300):
        directory = rootfs / f"usr/lib64/{index}-{'d' * 200}"
        directory.mkdir()
        for number in range(3):
            os.link(rootfs / "opt/lib.so", directory / f"lib{'l' * 200}{number}.so")
    (rootfs / "etc/ld.so.conf").write_text("".join(f"/usr/lib64/{name}\n" for name in os.listdir(rootfs / "usr/lib64")))
    (rootfs / "etc/ld.so.cache").write_bytes(b"old cache")
    with pytest.MonkeyPatch.context() as patch:
        from nvc.container.ldcache import sandbox

        limits = tuple((kind, 4096 if kind == resource.RLIMIT_FSIZE else value) for kind, value in sandbox._LIMITS)
        patch.setattr(sandbox, "_LIMITS", limits)
        with container(rootfs) as pid:
            located = locate(pid, rootfs)
            before = listing(rootfs / "etc")
            with pytest.raises(LdcacheError):
                run(located, "/sbin/ldconfig")
            assert listing(rootfs / "etc") == before
            assert (rootfs / "etc/ld.so.cache").read_bytes() == b"old cache"


@isolated
def test_undo_ends(rootfs: Path) -> None:
    """Whatever there is to be put back: the container's start does not wait for it without end."""
    with container(rootfs) as pid, Root.open(f"/proc/{pid}/root{rootfs}") as root:
        snapshot = Snapshot(root, ("/usr/lib64",), (0, 0))
        snapshot.begin()
        for index in range(5000):
            (rootfs / f"usr/lib64/libx.so.{index}").symlink_to("x")
        with pytest.MonkeyPatch.context() as patch, Undo() as undo:
            patch.setattr(ldcache_snapshot, "UNDO_LIMIT", 0.005)
            undo.push(snapshot.restore)
            start = time.monotonic()
            (error,) = undo.rollback()
            assert time.monotonic() - start < 1
        assert isinstance(error, TimeoutError)
        assert os.listdir(rootfs / "usr/lib64")


@isolated
def test_no_fifo_is_opened_by_the_snapshot(rootfs: Path) -> None:
    """Looked at, then opened by name: a FIFO that took the name meanwhile was opened for reading."""
    place = rootfs / "var/cache/ldconfig"
    place.mkdir()
    files = [place / "aux-cache", rootfs / "etc/ld.so.cache"]
    for file in files:
        file.touch()
        os.mkfifo(f"{file}.fifo")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                for file in files:
                    injection._libc.renameat2(-100, os.fsencode(file), -100, os.fsencode(f"{file}.fifo"), 2)
                    for name in (str(file), f"{file}.fifo"):
                        try:
                            # Only a reader lets this through; a regular file is opened too, and is no FIFO.
                            number = os.open(name, os.O_WRONLY | os.O_NONBLOCK)
                        except OSError:
                            continue
                        if stat.S_ISFIFO(os.fstat(number).st_mode):
                            os.write(write, b"!")
                        os.close(number)
        finally:
            os._exit(1)
    try:
        with Root.open(str(rootfs)) as root:
            for _ in range(1500):
                Snapshot(root, ("/usr/lib64",), (0, 0)).close()
                try:
                    root.open_file("/etc/ld.so.cache").close()
                except OSError:
                    pass
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(write)
    assert os.read(read, 1) == b""
