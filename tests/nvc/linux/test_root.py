"""nvc.linux.root: whatever a rootfs contains, a path leads to something inside it."""

from __future__ import annotations

import errno
import gc
import os
import socket
import stat
from pathlib import Path

import pytest

from nvc.base.undo import Undo
from nvc.linux import syscalls
from nvc.linux.fd import Fd
from nvc.linux.root import Root
from nvc.linux.syscalls import SyscallError

ME = {"uid": os.geteuid(), "gid": os.getegid()}

FOUND = [
    pytest.param("/usr/lib/file", "/usr/lib/file", id="plain"),
    pytest.param("usr/lib/file", "/usr/lib/file", id="relative"),
    pytest.param("//usr///lib/./file", "/usr/lib/file", id="repeated-slashes-and-dots"),
    pytest.param("/", "/", id="root"),
    pytest.param("/..", "/", id="above-the-root"),
    pytest.param("/../../../usr/lib", "/usr/lib", id="climbing-before"),
    pytest.param("/usr/../../../etc/file", "/etc/file", id="climbing-within"),
    pytest.param("/lib/file", "/usr/lib/file", id="relative-link"),
    pytest.param("/absolute/file", "/usr/lib/file", id="absolute-link"),
    pytest.param("/usr/etc/file", "/etc/file", id="absolute-link-in-a-directory"),
    pytest.param("/usr/etc/../etc", "/etc", id="dotdot-after-absolute-link"),
    pytest.param("/chain1/file", "/usr/lib/file", id="link-chain"),
    pytest.param("/up/etc/file", "/etc/file", id="link-above-the-root"),
    pytest.param("/up", "/", id="link-to-above-the-root"),
    pytest.param("/tofile", "/etc/file", id="link-to-file"),
    pytest.param("/lib/", "/usr/lib", id="trailing-slash"),
    pytest.param("/lib/x/..", "/usr/lib", id="dotdot-after-link"),
]
REFUSED = [
    pytest.param("/nowhere", errno.ENOENT, id="missing"),
    pytest.param("/nowhere/../etc/file", errno.ENOENT, id="dotdot-after-missing"),
    pytest.param("/tohost", errno.ENOENT, id="link-to-host"),
    pytest.param("/tohostfile", errno.ENOENT, id="link-to-host-file"),
    pytest.param("/climb", errno.ENOENT, id="link-climbing-to-host"),
    pytest.param("/dangling", errno.ENOENT, id="dangling"),
    pytest.param("/etc/file/x", errno.ENOTDIR, id="below-a-file"),
    pytest.param("/etc/file/", errno.ENOTDIR, id="file-with-slash"),
    pytest.param("/etc/file/..", errno.ENOTDIR, id="dotdot-after-file"),
    pytest.param("/slash", errno.ENOTDIR, id="link-to-file-with-slash"),
    pytest.param("/tofile/", errno.ENOTDIR, id="link-with-slash-to-file"),
    pytest.param("/loop", errno.ELOOP, id="loop"),
    pytest.param("/loop1/x", errno.ELOOP, id="loop-of-two"),
    pytest.param("/" + "a" * 256, errno.ENAMETOOLONG, id="long-name"),
]


def inode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


def identity(fd: Fd) -> tuple[int, int]:
    return fd.stat().st_dev, fd.stat().st_ino


@pytest.mark.parametrize(("path", "expected"), FOUND)
def test_path_leads_inside(path: str, expected: str, root: Root, tree: Path, resolver: str) -> None:
    with root.resolve(path) as found:
        assert inode(tree / expected.lstrip("/")) == identity(found)
    assert expected == root.real_path(path)


@pytest.mark.parametrize(("path", "number"), REFUSED)
def test_path_leads_nowhere(path: str, number: int, root: Root, resolver: str) -> None:
    with pytest.raises(SyscallError) as caught:
        root.resolve(path)
    assert number == caught.value.errno
    assert path in str(caught.value) or "resolve" in str(caught.value) or "openat" in str(caught.value)


def test_last_link_is_found_itself_on_request(root: Root, tree: Path, resolver: str) -> None:
    assert stat.S_ISLNK(root.stat("/lib", follow=False).st_mode)
    assert stat.S_ISDIR(root.stat("/lib/", follow=False).st_mode)
    assert inode(tree / "usr/lib/x") == identity(root.resolve("/lib/x", follow=False))


def test_link_chain_limit_is_the_kernels(root: Root, tree: Path, resolver: str) -> None:
    (tree / "n0").symlink_to("etc/file")
    for number in range(1, 41):
        (tree / f"n{number}").symlink_to(f"n{number - 1}")
    assert root.exists("/n39")
    assert not root.exists("/n40")


@pytest.mark.parametrize("link", ["root", "cwd", "exe", "ns/mnt", "fd/0"])
def test_magic_link_is_refused(link: str, resolver: str) -> None:
    with Root.open("/") as host, pytest.raises(SyscallError) as caught:
        host.resolve(f"/proc/self/{link}/" if link in ("root", "cwd") else f"/proc/self/{link}")
    assert caught.value.errno == errno.ELOOP


def test_ordinary_link_of_proc_is_followed(resolver: str) -> None:
    with Root.open("/") as host:
        assert host.read("/proc/mounts", 1 << 20)


MISSING = [
    pytest.param("/lib/x/f", "/usr/lib/x/f", id="below-link"),
    pytest.param("/dangling", "/nowhere/dir", id="dangling"),
    pytest.param("/dangling/../q", "/nowhere/q", id="dotdot-after-dangling"),
    pytest.param("/nowhere/x/../../etc", "/etc", id="dotdot-in-missing"),
    pytest.param("/tohost/secret", None, id="host-path-in-root"),
]


@pytest.mark.parametrize(("path", "expected"), MISSING)
def test_missing_rest_is_kept_as_written(path: str, expected: str | None, root: Root, tree: Path) -> None:
    host = str(tree.parent / "host")
    assert (expected or f"{host}/secret") == root.real_path(path)


def test_exists_answers_no_only_for_absence(root: Root, resolver: str) -> None:
    assert root.exists("/lib/file")
    for path in ("/nowhere", "/etc/file/x", "/loop", "/dangling"):
        assert not root.exists(path)
    with pytest.raises(SyscallError):
        root.exists("/" + "a" * 256)


def test_read_gives_the_content_up_to_the_limit(root: Root, resolver: str) -> None:
    assert root.read("/lib/file", 6) == b"inside"
    with pytest.raises(SyscallError) as caught:
        root.read("/lib/file", 5)
    assert caught.value.errno == errno.EFBIG


def test_read_does_not_wait_at_a_fifo(root: Root, tree: Path, resolver: str) -> None:
    os.mkfifo(tree / "fifo")
    for path in ("/fifo", "/etc"):
        with pytest.raises(SyscallError) as caught:
            root.read(path, 10)
        assert caught.value.errno == errno.EINVAL


def test_directory_is_listed_through_links(root: Root, resolver: str) -> None:
    assert root.list_directory("/absolute") == ["file", "x"]
    with pytest.raises(SyscallError):
        root.list_directory("/etc/file")


CREATED = [
    pytest.param("/opt/a/b", "opt/a/b", id="missing-parents"),
    pytest.param("/lib/new/b", "usr/lib/new/b", id="below-relative-link"),
    pytest.param("/absolute/new/b", "usr/lib/new/b", id="below-absolute-link"),
    pytest.param("/usr/etc/new/b", "etc/new/b", id="below-absolute-link-in-a-directory"),
    pytest.param("/chain1/new/b", "usr/lib/new/b", id="below-link-chain"),
    pytest.param("/up/new/b", "new/b", id="below-link-above-the-root"),
    pytest.param("/../../new/b", "new/b", id="above-the-root"),
    pytest.param("/dangling/b", "nowhere/dir/b", id="below-dangling"),
    pytest.param("/climb/b", "host/b", id="below-link-climbing-to-host"),
    pytest.param("/new/../b", "b", id="dotdot-in-new"),
]
#: Where a file or link shall be made, and what stands in the way.
BLOCKED = [
    pytest.param("/etc/file/b", errno.ENOTDIR, id="below-a-file"),
    pytest.param("/tofile/b", errno.ENOTDIR, id="below-link-to-file"),
    pytest.param("/loop/b", errno.ELOOP, id="below-loop"),
]


def snapshot(directory: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        found.append((str(path), status.st_mode, status.st_ino))
    return found


@pytest.mark.parametrize("kind", ["directory", "file", "symlink"])
@pytest.mark.parametrize(("path", "expected"), CREATED)
def test_creation_stays_inside_and_is_undone(
    path: str, expected: str, kind: str, root: Root, tree: Path, resolver: str
) -> None:
    before = snapshot(tree.parent)
    with Undo() as undo:
        if kind == "directory":
            root.make_directories(path, mode=0o700, undo=undo, **ME).close()
            assert stat.S_IMODE((tree / expected).lstat().st_mode) == 0o700
        elif kind == "file":
            with root.make_file(path, mode=0o444, undo=undo, **ME) as made:
                assert identity(made) == inode(tree / expected)
            assert (tree / expected).lstat().st_mode == stat.S_IFREG | 0o444
        else:
            assert root.make_symlink(path, "any text", undo=undo, **ME)
            assert os.readlink(tree / expected) == "any text"
    assert undo.errors == []
    assert before == snapshot(tree.parent)


@pytest.mark.parametrize("kind", ["directory", "file", "symlink"])
@pytest.mark.parametrize(("path", "number"), BLOCKED)
def test_creation_is_refused(path: str, number: int, kind: str, root: Root, tree: Path, resolver: str) -> None:
    before = snapshot(tree.parent)
    with Undo() as undo, pytest.raises(SyscallError) as caught:
        if kind == "directory":
            root.make_directories(path, undo=undo, **ME)
        elif kind == "file":
            root.make_file(path, undo=undo, **ME)
        else:
            root.make_symlink(path, "text", undo=undo, **ME)
    assert number == caught.value.errno
    assert before == snapshot(tree.parent)


def test_host_path_of_a_link_is_made_inside(root: Root, tree: Path, resolver: str) -> None:
    host = tree.parent / "host"
    before = snapshot(host)
    with Undo() as undo:
        root.make_file("/tohost/secret/f", undo=undo, **ME)
        root.make_file("/tohostfile", undo=undo, **ME)
        undo.commit()
    assert before == snapshot(host)
    assert (host / "file").read_text() == "host"
    assert (tree / str(host).lstrip("/") / "secret/f").is_file()
    assert (tree / str(host).lstrip("/") / "file").stat().st_size == 0


def test_target_of_a_dangling_link_is_made_inside(root: Root, tree: Path) -> None:
    with Undo() as undo:
        root.make_file("/danglingfile", undo=undo, **ME)
        assert (tree / "etc/new.conf").is_file()
        assert (tree / "danglingfile").is_symlink()
    assert not (tree / "etc/new.conf").exists()


def test_existing_file_is_returned_untouched(root: Root, tree: Path) -> None:
    undo = Undo()
    with root.make_file("/tolast", mode=0o600, undo=undo, **ME) as found:
        assert identity(found) == inode(tree / "usr/lib/file")
    assert len(undo) == 0
    assert (tree / "usr/lib/file").read_text() == "inside"


def test_existing_directory_is_returned_untouched(root: Root, tree: Path) -> None:
    undo = Undo()
    mode = (tree / "usr/lib").stat().st_mode
    with root.make_directories("/lib", mode=0o700, undo=undo, **ME) as found:
        assert identity(found) == inode(tree / "usr/lib")
    assert len(undo) == 0
    assert (tree / "usr/lib").stat().st_mode == mode


@pytest.mark.parametrize("name", ["/lib", "/etc/file", "/dangling", "/usr"])
def test_existing_name_is_kept_instead_of_a_link(name: str, root: Root, tree: Path) -> None:
    before = snapshot(tree)
    undo = Undo()
    assert not root.make_symlink(name, "other", undo=undo, **ME)
    assert len(undo) == 0
    assert before == snapshot(tree)


@pytest.mark.parametrize("path", ["/usr", "/lib", "/usr/", "/", "/new/"])
def test_directory_in_place_of_a_file_is_an_error(path: str, root: Root) -> None:
    with Undo() as undo, pytest.raises(SyscallError) as caught:
        root.make_file(path, undo=undo, **ME)
    assert caught.value.errno == errno.EISDIR


def test_file_in_place_of_a_directory_is_an_error(root: Root) -> None:
    with Undo() as undo, pytest.raises(SyscallError) as caught:
        root.make_directories("/etc/file", undo=undo, **ME)
    assert caught.value.errno == errno.ENOTDIR


def test_socket_is_a_target_for_a_socket_only(root: Root, tree: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, Undo() as undo:
        here = os.open(".", os.O_PATH)
        os.chdir(tree)  # a socket's path has room for 107 bytes
        server.bind("socket")
        os.fchdir(here)
        os.close(here)
        with root.make_file("/socket", mode=stat.S_IFSOCK | 0o666, undo=undo, **ME) as found:
            assert stat.S_ISSOCK(found.stat().st_mode)
        with pytest.raises(SyscallError) as caught:
            root.make_file("/socket", mode=stat.S_IFREG | 0o644, undo=undo, **ME)
        assert caught.value.errno == errno.EEXIST


def test_target_for_a_socket_is_an_empty_regular_file(root: Root, tree: Path) -> None:
    with Undo() as undo:
        root.make_file("/run/socket", mode=stat.S_IFSOCK | 0o4666, undo=undo, **ME)
        assert stat.S_ISREG((tree / "run/socket").stat().st_mode)
        assert not (tree / "run/socket").stat().st_mode & stat.S_ISUID


@pytest.mark.root
def test_character_device_is_a_target_for_one(root: Root, tree: Path) -> None:
    os.mknod(tree / "node", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with Undo() as undo, root.make_file("/node", mode=stat.S_IFCHR | 0o666, undo=undo, **ME) as found:
        assert stat.S_ISCHR(found.stat().st_mode)


@pytest.mark.root
def test_created_things_belong_to_the_containers_owner(root: Root, tree: Path) -> None:
    with Undo() as undo:
        # The parent is root's, and the owner may not write to it: DAC_OVERRIDE stays in force.
        root.make_file("/opt/sub/file", uid=100000, gid=100001, undo=undo)
        root.make_symlink("/opt/sub/link", "x", uid=100000, gid=100001, undo=undo)
        for name in ("opt", "opt/sub", "opt/sub/file", "opt/sub/link"):
            status = (tree / name).lstat()
            assert (status.st_uid, status.st_gid) == (100000, 100001), name
    assert undo.errors == []
    assert not (tree / "opt").exists()
    (tree / "mine").touch()
    assert (tree / "mine").stat().st_uid == 0


def test_undo_keeps_what_is_not_ours(root: Root, tree: Path) -> None:
    with Undo() as undo:
        root.make_file("/opt/a/written", undo=undo, **ME)
        root.make_file("/opt/a/replaced", undo=undo, **ME)
        root.make_directories("/opt/b", undo=undo, **ME)
        (tree / "opt/a/written").write_text("tenant")
        (tree / "opt/a/other").write_text("")
        os.replace(tree / "opt/a/other", tree / "opt/a/replaced")
        (tree / "opt/b/theirs").touch()
    assert undo.errors == []
    assert sorted(path.name for path in (tree / "opt").rglob("*")) == ["a", "b", "replaced", "theirs", "written"]


def test_undo_survives_what_is_gone(root: Root, tree: Path) -> None:
    with Undo() as undo:
        root.make_file("/opt/a/file", undo=undo, **ME)
        (tree / "opt/a/file").unlink()
        (tree / "opt/a").rmdir()
    assert undo.errors == []
    assert not (tree / "opt").exists()


def test_no_descriptor_leaks(root: Root, resolver: str) -> None:
    with Undo() as undo:  # pins /proc/self and whatever else is opened once
        root.make_file("/first", undo=undo, **ME)
    gc.collect()  # what earlier tests left in tracebacks
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with Undo() as undo:
            root.make_file("/opt/a/file", undo=undo, **ME)
            root.make_symlink("/opt/link", "x", undo=undo, **ME)
            root.exists("/loop")
            root.real_path("/chain1")
    assert before == os.listdir("/proc/self/fd")


def test_root_must_be_a_directory(tree: Path) -> None:
    with pytest.raises(SyscallError, match="not a directory"):
        Root.open(str(tree / "etc/file"))
    with pytest.raises(SyscallError, match="no such file"):
        Root.open(str(tree / "nowhere"))


def test_resolver_switch_is_what_the_fixture_says(root: Root, resolver: str) -> None:
    assert ("openat2" in syscalls.unavailable) == (resolver == "walk")
