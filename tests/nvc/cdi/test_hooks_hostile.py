"""Every hook against images that set traps where it works: nothing outside is touched, every error is told."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import LdcacheError, NvcError
from nvc.base.log import Log
from nvc.cdi import hooks
from tests.nvc.cdi.conftest import enter
from tests.support import injection
from tests.support.injection import isolated, mountinfo, tree

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
