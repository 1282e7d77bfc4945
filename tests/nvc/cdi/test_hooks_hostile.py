"""Every hook against images that set traps where it works: nothing outside is touched, every error is reported."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError, LdcacheError, NvcError
from nvc.base.log import Log
from nvc.base.undo import Undo
from nvc.cdi import hooks, procfile
from nvc.linux import mounts, procfd
from nvc.linux.fd import Fd
from nvc.linux.root import Root
from nvc.linux.tree import Tree
from tests.nvc.cdi.conftest import enter
from tests.support import injection
from tests.support.injection import MS_BIND, MS_SHARED, isolated, mount, mountinfo, tree

pytestmark = pytest.mark.root
LOG = Log.none()
COMPAT = "/usr/local/cuda/compat"
#: What an image may have where a hook works, made as (place, what).
LEVELS = (
    "usr",
    "usr/lib",
    "usr/lib/driver",
    "usr/lib/driver/libcuda.so",
    "usr/local",
    "usr/local/cuda",
    "usr/local/cuda/compat",
    "etc",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/ld.so.conf.d/00-nvcr-nvc.conf",
    "etc/ld.so.conf.d/00-compat-nvc.conf",
    "etc/ld.so.conf.d/zz-nvcr-nvc.conf",
    "etc/ld.so.cache",
    "etc/nvidia",
    "proc",
    "dev",
    "run",
)
TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "absolute": lambda place, outside: place.symlink_to(outside),
    "dots": lambda place, outside: place.symlink_to("../" * 40 + str(outside)[1:]),
    "magic": lambda place, outside: place.symlink_to(f"/proc/1/root{outside}"),
    "circle": lambda place, outside: place.symlink_to(place.name),
    "file": lambda place, outside: place.write_text("x"),
    "fifo": lambda place, outside: os.mkfifo(place),
    "device": lambda place, outside: os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5)),
}


def clear(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif place.is_symlink() or place.exists():
        place.unlink()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("trap", TRAPS)
def test_no_image_leads_a_hook_out(rootfs: Path, tmp_path: Path, level: str, trap: str) -> None:
    outside = tmp_path / "outside"
    for name in ("driver", "lib/driver", "compat", "cuda/compat", "ld.so.conf.d", "nvidia", "dri"):
        (outside / name).mkdir(parents=True)
    (outside / "ld.so.conf").write_text("/outside\n")
    injection.build_library(rootfs / f"{COMPAT[1:]}/libcuda.so.575.51", "libcuda.so")
    clear(rootfs / level)
    TRAPS[trap](rootfs / level, outside)
    before = tree(outside)

    @isolated
    def run() -> None:
        nodes = {"nvidia0": 0} if stat.S_ISDIR((rootfs / "dev").lstat().st_mode) else {}
        target = enter(rootfs, **nodes).replace(timeout=3.0)
        steps: list[Callable[[], object]] = [
            lambda: hooks.create_symlinks(target, [("/usr/lib/driver/libcuda.so", "libcuda.so.1")], LOG),
            lambda: hooks.enable_cuda_compat(target, "535.104", "", COMPAT, LOG),
            lambda: hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG),
            lambda: hooks.disable_device_node_modification(target, "", LOG),
            lambda: hooks.update_application_profile(target, LOG),
            lambda: hooks.chmod(target, 0o755, ["/dev/dri", "/run"], LOG),
        ]
        for step in steps:
            try:
                step()
            except NvcError as error:
                # What fails inside the sandbox has no path of ours.
                assert str(rootfs) in error.message or isinstance(error, LdcacheError)
        assert [line for line in mountinfo() if str(outside) in line and str(rootfs) not in line] == []

    run()
    assert tree(outside) == before


@isolated
def test_a_users_bundle_whose_root_becomes_a_link(rootfs: Path, tmp_path: Path) -> None:
    """Of a user who owns the directory that an engine of root's finds the bundle in."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.mkdir()
    home.mkdir()
    rootfs.rename(home / "before")
    (home / "rootfs").symlink_to(outside)
    for path in (home, home / "rootfs"):
        os.lchown(path, 1000, 1000)
    target = enter(home / "before").replace(rootfs=str(home / "rootfs"))
    before = tree(outside)
    for step in (
        lambda: hooks.create_symlinks(target, [("/usr/lib/driver/libcuda.so", "libcuda.so.1")], LOG),
        lambda: hooks.enable_cuda_compat(target, "535.104", "", COMPAT, LOG),
        lambda: hooks.update_ldcache(target, ["/usr/lib/driver"], "", LOG),
        lambda: hooks.chmod(target, 0o755, ["/"], LOG),
    ):
        with pytest.raises(ContainerError, match="can make or replace"):
            step()
    assert tree(outside) == before


@isolated
def test_a_link_of_the_image_opens_no_directory_of_a_volume(rootfs: Path, tmp_path: Path) -> None:
    """/dev/dri of the image leads into a directory that was bound into the container, and is its owner's alone."""
    volume = tmp_path / "volume"
    (volume / "secrets").mkdir(parents=True, mode=0o700)
    (rootfs / "data").mkdir()
    (rootfs / "opt/dri").symlink_to("/data/secrets")
    target = enter(rootfs)
    mount(str(volume), rootfs / "data", None, MS_BIND)

    assert hooks.chmod(target, 0o755, ["/opt/dri"], LOG) == 0
    assert stat.S_IMODE((volume / "secrets").stat().st_mode) == 0o700
    assert hooks.chmod(target, 0o755, ["/data/secrets"], LOG) == 1


def test_no_mount_of_ours_is_seen_elsewhere_for_a_moment(
    rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What covers a file of /proc is made on it first: a shared /proc sent that to the host."""
    attach, shared = mounts.attach, []

    def watched(tree: Tree, target: Fd, undo: Undo) -> None:
        number = procfd.mount_id(target)
        (line,) = [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[0] == f"{number}"
        ]
        shared.append("shared:" in line)
        attach(tree, target, undo)

    @isolated
    def run() -> None:
        enter(rootfs)
        mount(None, rootfs / "proc", None, MS_SHARED)
        monkeypatch.setattr(mounts, "attach", watched)
        monkeypatch.setattr(procfile, "is_foreign", lambda: True)
        with Root.open(str(rootfs)) as root:
            assert procfile.cover(root, "/proc/version", "of ours\n", LOG)
        assert (rootfs / "proc/version").read_text() == "of ours\n"
        assert shared and not any(shared)

    run()
