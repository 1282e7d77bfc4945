"""Images whose loader configuration goes for the host, with a real runtime: the container starts or fails, at once."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base import budgets
from tests.support import rootfs
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system


def endless_device(tree: Path) -> None:
    """/dev/zero, which the container itself could open as well; /dev/mem, which it could not, is no different."""
    os.mknod(tree / "etc/ld.so.conf", stat.S_IFCHR | 0o666, os.makedev(1, 5))


def endless_line(tree: Path) -> None:
    (tree / "etc/ld.so.conf").touch()
    os.truncate(tree / "etc/ld.so.conf", 1 << 40)


def sparse_cache(tree: Path) -> None:
    (tree / "etc/ld.so.cache").touch()
    os.truncate(tree / "etc/ld.so.cache", 1 << 40)


def fifo(tree: Path) -> None:
    os.mkfifo(tree / "etc/ld.so.conf")


@pytest.mark.parametrize(
    ("attack", "message"),
    [(endless_device, ""), (endless_line, ""), (sparse_cache, ""), (fifo, "/etc/ld.so.conf is a FIFO")],
)
def test_the_host_is_not_held(bed: Bed, runc: OciRuntime, attack: Callable[[Path], None], message: str) -> None:
    tree = bed.rootfs()
    for name in ("ld.so.conf", "ld.so.cache"):
        (tree / "etc" / name).unlink(missing_ok=True)
    attack(tree)
    start = time.monotonic()

    container = Container(tree, ["/bin/true"], gpu_env("0"), {"prestart": [bed.hook("prestart")]})
    result = bed.run(runc, container)

    assert (result.code != 0) == bool(message), result.text
    assert message in result.text
    assert time.monotonic() - start < 9
    assert not [name for name in os.listdir(tree / "etc") if "nvc" in name]
    if not message:
        assert 0 < (tree / "etc/ld.so.cache").stat().st_size < 1 << 20


def test_no_start_takes_longer_than_its_budget(bed: Bed, runc: OciRuntime) -> None:
    """Default settings, and a FIFO that the image's configuration includes: ldconfig waits for a writer."""
    tree = bed.rootfs()
    os.mkfifo(tree / "etc/ld.so.conf.d/wait.conf")
    before = rootfs.fingerprint(tree)
    start = time.monotonic()

    container = Container(tree, ["/bin/true"], gpu_env("0"), {"prestart": [bed.hook("prestart")]})
    result = bed.run(runc, container)

    assert result.code != 0
    assert "did not end within" in result.text
    assert time.monotonic() - start < budgets.START_S
    # What runc itself makes in a root (nothing with these mounts) aside: as it was.
    assert rootfs.fingerprint(tree) == before
