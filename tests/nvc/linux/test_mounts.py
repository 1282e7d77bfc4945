"""nvc.linux.mounts in a private mount namespace, with the mount API and as on a kernel without it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.base.undo import Undo
from nvc.formats import mountinfo
from nvc.linux import const, mounts, namespaces, procfd, syscalls
from nvc.linux.fd import Fd, same_file
from nvc.linux.root import Root
from nvc.linux.syscalls import SyscallError
from tests.support import injection, leftovers
from tests.support.isolation import in_namespaces

pytestmark = pytest.mark.root
API = ["modern", "legacy"]


def isolated(function: Callable[..., Any], path: Path, api: str = "modern") -> Any:
    def run() -> Any:
        if api == "legacy":
            syscalls.unavailable.add("mount_setattr")
        assert mounts.modern() == (api == "modern")
        injection.mount("none", "/run", "tmpfs", 0)  # our own: others do the same beside us, and leave the same
        for name in ("source", "target", "rootfs"):
            (path / name).mkdir(exist_ok=True)
        (path / "source/file").write_text("driver")
        return function(path)

    return in_namespaces(run)


def mounted_at(path: Path) -> list[mountinfo.Mount]:
    """The mounts at ``path``, the top one last."""
    return [mount for mount in mountinfo.parse(Path("/proc/self/mountinfo").read_text()) if mount.point == str(path)]


def pinned(path: Path) -> Fd:
    return Fd(os.open(path, os.O_PATH), str(path))


@pytest.mark.parametrize("api", API)
def test_bind_mount_has_its_attributes_and_is_undone(api: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        target = path / "target/file"
        target.touch()
        with Undo() as undo:
            with mounts.clone(str(path / "source/file")) as tree:
                assert stat.S_ISREG(tree.stat().st_mode)
                mounts.restrict(tree, mounts.RDONLY | mounts.NOSUID | mounts.NODEV)
                assert mounted_at(target) == []
                mounts.attach(tree, pinned(target), undo)
            (mount,) = mounted_at(target)
            assert set(mount.options) >= {"ro", "nosuid", "nodev"}
            assert "noexec" not in mount.options
            assert mount.tags == ()
            assert target.read_text() == "driver"
            with pytest.raises(OSError, match="Read-only"):
                target.write_text("x")
        assert undo.errors == []
        assert mounted_at(target) == []
        assert target.read_text() == ""

    isolated(run, tmp_path, api)


@pytest.mark.parametrize("api", API)
def test_tmpfs_is_filled_before_it_is_seen(api: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        target = path / "target"
        with Undo() as undo:
            with mounts.new_tmpfs(mode=0o555, source="nvc", size="64k") as tree:
                os.mkdir("gpus", dir_fd=tree.fileno())
                file = os.open("params", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444, dir_fd=tree.fileno())
                os.write(file, b"ModifyDeviceFiles: 0\n")
                os.close(file)
                mounts.restrict(tree, mounts.RDONLY)
                assert mounted_at(target) == []
                mounts.attach(tree, pinned(target), undo)
            (mount,) = mounted_at(target)
            assert set(mount.options) >= {"ro", "nosuid", "nodev", "noexec"}
            assert (mount.kind, mount.source) == ("tmpfs", "nvc")
            assert "size=64k" in mount.super_options
            assert stat.S_IMODE(target.stat().st_mode) == 0o555
            assert sorted(os.listdir(target)) == ["gpus", "params"]
            assert (target / "params").read_text() == "ModifyDeviceFiles: 0\n"
            with pytest.raises(OSError, match="Read-only"):
                (target / "more").touch()
        assert undo.errors == []
        assert mounted_at(target) == []
        assert not [name for name in os.listdir("/run") if name.startswith("nvc-tmpfs-")]

    isolated(run, tmp_path, api)


@pytest.mark.parametrize("api", API)
def test_abandoned_tmpfs_leaves_nothing(api: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        before = leftovers.mountinfo()
        mounts.new_tmpfs(mode=0o755, source="nvc").close()
        assert before == leftovers.mountinfo()
        assert not [name for name in os.listdir("/run") if name.startswith("nvc-tmpfs-")]

    isolated(run, tmp_path, api)


@pytest.mark.parametrize("api", API)
def test_undo_takes_exactly_its_mount(api: str, tmp_path: Path) -> None:
    """Another mount below ours at the same place stays; one inside ours goes with it."""

    def run(path: Path) -> None:
        target = path / "target"
        syscalls.mount("below", str(target), "tmpfs", 0)
        (target / "of-below").touch()
        undo = Undo()
        with mounts.clone(str(path / "source")) as tree:
            mounts.attach(tree, pinned(target), undo)
        assert len(mounted_at(target)) == 2
        assert undo.rollback() == []
        (mount,) = mounted_at(target)
        assert mount.source == "below"
        assert (target / "of-below").exists()

    isolated(run, tmp_path, api)


def test_undo_of_a_covered_mount_leaves_its_place(tmp_path: Path) -> None:
    """The path is another mount's now; what is undone is ours, by descriptor."""

    def run(path: Path) -> None:
        target, moved = path / "target", path / "rootfs"
        undo = Undo()
        with mounts.clone(str(path / "source")) as tree:
            mounts.attach(tree, pinned(target), undo)
        syscalls.mount(str(target), str(moved), None, const.MS_MOVE)
        syscalls.mount("tenant", str(target), "tmpfs", 0)
        assert undo.rollback() == []
        assert mounted_at(moved) == []
        assert [mount.source for mount in mounted_at(target)] == ["tenant"]

    isolated(run, tmp_path)


def test_undo_of_a_mount_that_is_gone_is_no_error(tmp_path: Path) -> None:
    def run(path: Path) -> None:
        undo = Undo()
        with mounts.clone(str(path / "source")) as tree:
            mounts.attach(tree, pinned(path / "target"), undo)
        syscalls.umount2(str(path / "target"), const.MNT_DETACH)
        assert undo.rollback() == []

    isolated(run, tmp_path)


@pytest.mark.parametrize("api", API)
@pytest.mark.parametrize("recursive", [True, False])
def test_submounts_come_along_only_on_request(recursive: bool, api: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        (path / "source/sub").mkdir()
        syscalls.mount("inner", str(path / "source/sub"), "tmpfs", 0)
        (path / "source/sub/f").touch()
        with Undo() as undo, mounts.clone(str(path / "source"), recursive=recursive) as tree:
            mounts.restrict(tree, mounts.RDONLY)
            mounts.attach(tree, pinned(path / "target"), undo)
            assert (path / "target/sub/f").exists() == recursive
            if recursive and api == "modern":
                assert "ro" in mounted_at(path / "target/sub")[0].options

    isolated(run, tmp_path, api)


@pytest.mark.parametrize("api", API)
def test_mount_below_a_shared_mount_is_private(api: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        syscalls.mount("shared", str(path / "rootfs"), "tmpfs", 0)
        syscalls.mount(None, str(path / "rootfs"), None, const.MS_SHARED)
        target = path / "rootfs/t"
        target.mkdir()
        with Undo() as undo, mounts.clone(str(path / "source")) as tree:
            mounts.restrict(tree, mounts.RDONLY)
            mounts.attach(tree, pinned(target), undo)
            assert mounted_at(target)[0].tags == ()

    isolated(run, tmp_path, api)


@pytest.mark.parametrize("api", API)
def test_what_is_mounted_on_a_shared_source_later_does_not_come_along(api: str, tmp_path: Path) -> None:
    """Neither while the clone is detached nor afterwards."""

    def run(path: Path) -> None:
        syscalls.mount("shared", str(path / "source"), "tmpfs", 0)
        syscalls.mount(None, str(path / "source"), None, const.MS_SHARED)
        (path / "source/sub").mkdir()
        with Undo() as undo, mounts.clone(str(path / "source")) as tree:
            mounts.restrict(tree, mounts.RDONLY)
            syscalls.mount("before", str(path / "source/sub"), "tmpfs", 0)
            mounts.attach(tree, pinned(path / "target"), undo)
            syscalls.mount("after", str(path / "source/sub"), "tmpfs", 0)
            assert mounted_at(path / "target/sub") == []

    isolated(run, tmp_path, api)


@pytest.mark.parametrize("api", API)
def test_kinds_must_match(api: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        for source, target in ((path / "source/file", path / "target"), (path / "source", path / "source/file")):
            undo = Undo()
            with mounts.clone(str(source)) as tree, pytest.raises(SyscallError) as caught:
                mounts.attach(tree, pinned(target), undo)
            assert caught.value.errno == errno.ENOTDIR
            assert len(undo) == 0
            assert mounted_at(target) == []

    isolated(run, tmp_path, api)


def test_link_as_source_is_refused_on_request(tmp_path: Path) -> None:
    def run(path: Path) -> None:
        (path / "link").symlink_to("source/file")
        with mounts.clone(str(path / "link")) as tree:
            assert same_file(tree, pinned(path / "source/file"))
        with pytest.raises(SyscallError) as caught:
            mounts.clone(str(path / "link"), follow=False)
        assert caught.value.errno == errno.ELOOP
        with pytest.raises(SyscallError, match="no such file"):
            mounts.clone(str(path / "nowhere"))

    isolated(run, tmp_path)


def test_source_is_what_was_opened_not_what_is_at_the_path(tmp_path: Path) -> None:
    def run(path: Path) -> None:
        (path / "other").write_text("swapped")
        (path / "target/file").touch()
        with Undo() as undo, mounts.clone(str(path / "source/file")) as tree:
            os.rename(path / "source/file", path / "source/old")
            os.rename(path / "other", path / "source/file")
            mounts.attach(tree, pinned(path / "target/file"), undo)
            assert (path / "target/file").read_text() == "driver"

    isolated(run, tmp_path)


def test_legacy_source_swapped_meanwhile_is_not_mounted(tmp_path: Path) -> None:
    """The path of an opened file that lost its name is not the file's: refused, whatever it names now."""

    def run(path: Path) -> None:
        (path / "other").write_text("swapped")
        (path / "target/file").touch()
        with mounts.clone(str(path / "source/file")) as tree:
            os.replace(path / "other", path / "source/file")
            with pytest.raises(SyscallError, match="no such file"):
                mounts.attach(tree, pinned(path / "target/file"), Undo())
        with mounts.clone(str(path / "source/file")) as tree:
            (path / "tenant").write_text("tenant")
            syscalls.mount(str(path / "tenant"), str(path / "source/file"), None, const.MS_BIND)
            with pytest.raises(SyscallError, match="stale"):
                mounts.attach(tree, pinned(path / "target/file"), Undo())
        assert (path / "target/file").read_text() == ""

    isolated(run, tmp_path, "legacy")


@pytest.mark.parametrize("api", API)
def test_legacy_keeps_the_attributes_of_its_source(api: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        syscalls.mount("s", str(path / "source"), "tmpfs", const.MS_NOSUID | const.MS_NOEXEC)
        with Undo() as undo, mounts.clone(str(path / "source")) as tree:
            mounts.restrict(tree, mounts.RDONLY)
            mounts.attach(tree, pinned(path / "target"), undo)
            assert set(mounted_at(path / "target")[0].options) >= {"ro", "nosuid", "noexec"}

    isolated(run, tmp_path, api)


@pytest.mark.parametrize("api", API)
def test_host_source_appears_in_an_entered_namespace_only(api: str, tmp_path: Path) -> None:
    """The order that configure uses: clone here, enter there, resolve there, attach there."""

    def run(path: Path) -> None:
        ready, container_ready = os.pipe(), os.pipe()
        container = os.fork()
        if container == 0:
            syscalls.unshare(const.CLONE_NEWNS)
            os.write(container_ready[1], b"x")
            os.read(ready[0], 1)
            os._exit(0 if (path / "rootfs/usr/file").read_text() == "driver" else 1)
        os.read(container_ready[0], 1)
        service = os.fork()
        if service == 0:
            status = 1
            try:
                with mounts.clone(str(path / "source/file")) as tree:
                    mounts.restrict(tree, mounts.RDONLY)
                    early = Root.open(str(path / "rootfs"))
                    namespaces.enter(f"/proc/{container}/ns/mnt", "mnt")
                    with Root.open(str(path / "rootfs")) as root, Undo() as undo:
                        target = root.make_file("/usr/file", uid=0, gid=0, undo=undo)
                        if api == "modern":
                            with pytest.raises(SyscallError) as caught:
                                mounts.attach(tree, early.resolve("/usr/file"), undo)
                            assert caught.value.errno == errno.EINVAL
                        mounts.attach(tree, target, undo)
                        assert (path / "rootfs/usr/file").read_text() == "driver"
                        undo.commit()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(service, 0)[1] == 0
        assert mounted_at(path / "rootfs/usr/file") == []
        os.write(ready[1], b"x")
        assert os.waitpid(container, 0)[1] == 0

    isolated(run, tmp_path, api)


def test_undo_works_where_proc_is_not_ours(tmp_path: Path) -> None:
    """procfd is pinned: an entered namespace may have another /proc, or none."""

    def run(path: Path) -> None:
        procfd.pin()
        undo = Undo()
        with mounts.clone(str(path / "source")) as tree:
            mounts.attach(tree, pinned(path / "target"), undo)
        before = procfd.mount_id(pinned(path / "target"))
        syscalls.mount("none", "/proc", "tmpfs", 0)
        assert not os.path.exists("/proc/self")
        assert procfd.mount_id(pinned(path / "target")) == before
        assert undo.rollback() == []
        syscalls.umount2("/proc")
        assert mounted_at(path / "target") == []

    isolated(run, tmp_path)


@pytest.mark.parametrize("statx", [True, False])
def test_mount_id_is_that_of_mountinfo(statx: bool, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        if not statx:
            syscalls.unavailable.add("statx")
        syscalls.mount("t", str(path / "target"), "tmpfs", 0)
        assert procfd.mount_id(pinned(path / "target")) == mounted_at(path / "target")[0].id

    isolated(run, tmp_path)


@pytest.mark.parametrize("api", API)
def test_root_of_a_user_namespace_can_do_the_same(api: str, tmp_path: Path) -> None:
    """Attributes that the namespace locked (nosuid, nodev of the source's mount) are no obstacle."""

    def run(path: Path) -> None:
        syscalls.mount("s", str(path / "source"), "tmpfs", const.MS_NOSUID | const.MS_NODEV)
        (path / "source/file").write_text("driver")
        syscalls.unshare(const.CLONE_NEWUSER | const.CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
            Path(f"/proc/self/{name}").write_text(text)
        with Root.open(str(path / "rootfs")) as root, Undo() as undo:
            target = root.make_file("/usr/lib/file", uid=0, gid=0, undo=undo)
            with mounts.clone(str(path / "source/file")) as tree:
                mounts.restrict(tree, mounts.RDONLY)
                mounts.attach(tree, target, undo)
            assert set(mounted_at(path / "rootfs/usr/lib/file")[0].options) >= {"ro", "nosuid", "nodev"}
            if api == "modern":  # the old way needs a writable /run, which the namespace's root may not have
                with mounts.new_tmpfs(mode=0o555, source="nvc") as tree:
                    mounts.restrict(tree, mounts.RDONLY)
                    mounts.attach(tree, root.make_directories("/proc/x", uid=0, gid=0, undo=undo), undo)
                assert mounted_at(path / "rootfs/proc/x")[0].kind == "tmpfs"
        assert undo.errors == []
        assert os.listdir(path / "rootfs") == []

    isolated(run, tmp_path, api)
