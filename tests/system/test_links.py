"""Images whose links lead out of the root file system: the host is never touched, whatever becomes of the container.

Each directory and file that we write at is replaced by a link to a tree outside, absolute or relative. Inside the
container such a link names a path of the container's own (RESOLVE_IN_ROOT), so the container may well start; what must
hold is that the outside is as it was (CVE-2024-0132, CVE-2025-23359, CVE-2025-23267).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support import rootfs
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

LIBRARIES = f"usr/lib/{rootfs.multiarch()}"
VERSION = "580.159.04"
DIRECTORIES = (LIBRARIES, "usr/lib", "usr", "usr/bin", "etc", "usr/lib/firmware", "run", "var", "sbin")
FILES = (
    "etc/ld.so.cache",
    "etc/ld.so.cache~",
    "etc/ld.so.conf",
    "usr/bin/nvidia-smi",
    f"{LIBRARIES}/libcuda.so",
    f"{LIBRARIES}/libcuda.so.1",
    f"{LIBRARIES}/libcuda.so.{VERSION}",
    f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
    "usr/lib/firmware/nvidia",
    f"usr/lib/firmware/nvidia/{VERSION}",
    f"usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
    "run/nvidia-persistenced/socket",
)


def _text(kind: str, link: Path, outside: Path) -> str:
    if kind == "absolute":
        return str(outside)
    climb = "../" * 24  # more than any directory is deep: the kernel stops at the (right) root
    return climb + str(outside).lstrip("/")


def _outside(bed: Bed) -> Path:
    """A tree of the host with something to lose: what a followed link would overwrite, mount over or fill."""
    outside = bed.directory("outside")
    (outside / "keep").write_text("the host's")
    for name in ("nvidia-smi", f"libcuda.so.{VERSION}", "ld.so.cache", "ld.so.conf", "socket"):
        (outside / name).write_text("the host's")
    return outside


def _mount_points() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


@pytest.mark.parametrize("kind", ["absolute", "climbing"])
@pytest.mark.parametrize("name", DIRECTORIES)
def test_directory_is_a_link_out(bed: Bed, runc: OciRuntime, name: str, kind: str) -> None:
    tree, outside = bed.rootfs(), _outside(bed)
    place = tree / name
    if place.is_dir() and not place.is_symlink():
        # The directory's content is found through the link: the container could start if the host were its root.
        shutil.copytree(place, outside / "content", symlinks=True)
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(_text(kind, place, outside))
    _run_and_compare(bed, runc, tree, outside)


@pytest.mark.parametrize("kind", ["absolute", "climbing"])
@pytest.mark.parametrize("name", FILES)
def test_file_is_a_link_out(bed: Bed, runc: OciRuntime, name: str, kind: str) -> None:
    tree, outside = bed.rootfs(), _outside(bed)
    place = tree / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(_text(kind, place, outside / place.name))
    _run_and_compare(bed, runc, tree, outside)


@pytest.mark.parametrize("kind", ["absolute", "climbing"])
def test_every_name_is_a_link_out(bed: Bed, runc: OciRuntime, kind: str) -> None:
    """Every file of the driver at once, each behind a link to a file of the host that has its name."""
    tree, outside = bed.rootfs(), _outside(bed)
    listed = bed.call(bed.commands.cli, f"--sim={bed.machine('h200')}", "list", "-l", "-b", "-i", "-f", check=True)
    names = listed.out.split()
    assert len(names) > 30
    for name in names:
        place = tree / name.lstrip("/")
        (outside / place.name).write_text("the host's")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(_text(kind, place, outside / place.name))
    assert _run_and_compare(bed, runc, tree, outside) == 0


def _run_and_compare(bed: Bed, runc: OciRuntime, tree: Path, outside: Path) -> int:
    """The container's exit code, when the host is as it was."""
    before, mounts = rootfs.fingerprint(outside), _mount_points()
    hooks = {"prestart": [bed.hook("prestart")]}
    result = bed.run(runc, Container(tree, ["/bin/busybox", "true"], gpu_env("0", "all"), hooks))
    assert "Traceback" not in result.text
    assert result.code == 0 or "error: " in result.text
    assert before == rootfs.fingerprint(outside)
    assert {point for point in _mount_points() - mounts if bed.token in point} == set()
    return result.code


@pytest.mark.parametrize("kind", ["absolute", "climbing"])
@pytest.mark.parametrize("name", ["dev", "proc", "sys"])
def test_mount_point_of_the_runtime_is_a_link_out(bed: Bed, name: str, kind: str) -> None:
    """Runtimes refuse these or make them directories; a caller without a runtime hands them to us as they are."""
    tree, outside = bed.rootfs(), _outside(bed)
    (tree / name).rmdir()
    (tree / name).symlink_to(_text(kind, tree / name, outside))
    before = rootfs.fingerprint(outside)
    sim = f"--sim={bed.machine('h200')}"
    configure = [bed.commands.cli, sim, "configure", "--no-cgroups", "-d", "0", "-c", "-u", str(tree)]
    result = bed.call("unshare", "--mount", "--propagation", "private", *configure)
    assert "Traceback" not in result.text
    assert result.code == 0 or "error: " in result.err
    assert before == rootfs.fingerprint(outside)


def test_final_link_to_the_hosts_device_is_not_followed(bed: Bed, runc: OciRuntime) -> None:
    """/dev is made by the runtime, so an image cannot place this one; a bind-mounted /dev of an engine could."""
    tree, outside = bed.rootfs(), _outside(bed)
    os.mknod(outside / "null", 0o666 | 0o020000, os.makedev(1, 3))
    shared = bed.directory("dev")
    (shared / "nvidia0").symlink_to(outside / "null")
    mount = {"destination": "/dev", "type": "bind", "source": str(shared), "options": ["rbind", "rw"]}
    before = rootfs.fingerprint(outside)
    hooks = {"prestart": [bed.hook("prestart")]}
    container = Container(tree, ["/bin/busybox", "true"], gpu_env("0"), hooks, mounts=[mount])
    result = bed.run(runc, container)
    assert "Traceback" not in result.text
    assert before == rootfs.fingerprint(outside)
