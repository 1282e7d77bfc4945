"""The toolkit's docker end-to-end cases (docs/reference/conformance.md), as far as can be shown without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import rootfs
from tests.support.bed import Bed
from tests.support.docker import Docker
from tests.support.runtimes import Result

pytestmark = pytest.mark.engines

SMI = ["nvidia-smi", "-L"]
ALL = ["-e", "NVIDIA_VISIBLE_DEVICES=all"]
AUTOMATIC = ["-e", "NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=all"]
HOOK, RUNTIME = ["--gpus=all"], ["--runtime=nvidia", *ALL]
WAYS = pytest.mark.parametrize("options", [HOOK, RUNTIME], ids=["hook", "runtime"])


def uuids(text: str) -> list[str]:
    return re.findall(r"GPU-[0-9a-f-]{36}", text)


def host(bed: Bed) -> list[str]:
    """The GPUs of the machine, in its order."""
    return uuids(bed.call(bed.commands.nvc, f"--sim={bed.machine('h100x8')}", "info", "--csv", check=True).out)


@pytest.fixture
def image(bed: Bed, docker: Docker) -> Callable[..., str]:
    """Makes an image from a root file system that a function has changed."""

    def make(change: Callable[[Path], object], *instructions: str) -> str:
        tree = bed.rootfs()
        change(tree)
        name = f"{bed.name('image')}:1"
        docker.import_image(tree, *instructions, name=name)
        return name

    return make


@pytest.mark.parametrize(
    "options",
    [
        RUNTIME,
        ["--runtime=nvidia", *AUTOMATIC],
        ["--gpus=all", "--runtime=nvidia", *AUTOMATIC],
        ["--runtime=nvidia", "--gpus=all"],
        HOOK,
    ],
    ids=["env", "automatic", "gpus-automatic", "gpus-runtime", "gpus"],
)
def test_nvidia_smi_lists_what_the_host_has(bed: Bed, docker: Docker, options: list[str]) -> None:
    result = docker.run(options, SMI)

    assert result.code == 0, result.text
    assert uuids(result.out) == host(bed)


def test_none_is_the_driver_without_a_gpu(docker: Docker) -> None:
    result = docker.run(["--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=none"], SMI)

    assert uuids(result.out) == []
    assert "No devices found" in result.text


@WAYS
def test_device_nodes_are_not_modified(docker: Docker, options: list[str]) -> None:
    result = docker.run(options, ["/bin/grep", "ModifyDeviceFiles:", "/proc/driver/nvidia/params"])

    assert result.out == "ModifyDeviceFiles: 0\n", result.text


@WAYS
def test_the_loader_cache_has_the_driver(docker: Docker, options: list[str]) -> None:
    script = "/sbin/ldconfig -p | grep -F libcuda.so.1; readlink /usr/lib/*/libcuda.so"

    result = docker.run(options, ["/bin/sh", "-c", script])

    assert "=> /usr/lib" in result.out, result.text
    assert result.out.splitlines()[-1] == "libcuda.so.1"


@WAYS
def test_no_mount_reaches_the_host(bed: Bed, docker: Docker, options: list[str]) -> None:
    shared = bed.directory("shared")
    volume = f"--mount=type=bind,source={shared},target=/empty,bind-propagation=shared"
    assert docker.daemon is not None and docker.daemon.process is not None
    table = Path(f"/proc/{docker.daemon.process.pid}/mountinfo")
    assert docker.run([volume], ["/bin/true"]).code == 0
    before = sorted(line.split()[4] for line in table.read_text().splitlines())

    result = docker.run([volume, *options], ["/bin/true"])

    assert result.code == 0, result.text
    assert sorted(line.split()[4] for line in table.read_text().splitlines()) == before


@WAYS
def test_a_link_in_the_place_of_the_firmware_leads_nowhere(
    bed: Bed, docker: Docker, image: Callable[..., str], options: list[str]
) -> None:
    """CVE-2025-23359: the image's directory is a link to one of the host's."""
    outside = bed.directory("outside")
    info = bed.call(bed.commands.nvc, f"--sim={bed.machine('h100x8')}", "info", "--csv", check=True).out
    version = re.findall(r"\d+\.\d+\.\d+", info)[0]

    def change(tree: Path) -> None:
        directory = tree / "lib/firmware/nvidia"
        directory.mkdir(parents=True)
        (directory / version).symlink_to("../" * 12 + str(outside).lstrip("/"))

    result = docker.run(options, ["/bin/true"], image=image(change))

    assert result.code == 0 or "error" in result.err, result.text
    assert list(outside.iterdir()) == []


@WAYS
def test_a_preloaded_library_of_the_image_does_not_run_outside(
    bed: Bed, docker: Docker, image: Callable[..., str], options: list[str]
) -> None:
    """CVE-2025-23266. The library would be loaded from the hook's working directory."""
    mark = bed.directory("mark") / "owned"
    source = bed.directory("preload") / "poc.c"
    source.write_text(
        f'#include <fcntl.h>\n__attribute__((constructor)) static void owned(void) {{ creat("{mark}", 0644); }}\n'
    )
    build = ["gcc", "-shared", "-fPIC", "-o", str(source.with_suffix(".so")), str(source)]
    assert bed.call(*build).code == 0

    def change(tree: Path) -> None:
        (tree / "poc.so").write_bytes(source.with_suffix(".so").read_bytes())

    name = image(change, "ENV LD_PRELOAD=/proc/self/cwd/poc.so")
    result = docker.run(options, ["/bin/true"], image=name)

    assert result.code == 0, result.text
    assert not mark.exists()


@WAYS
def test_an_ldconfig_of_the_container_finds_the_images_order_again(
    docker: Docker, image: Callable[..., str], options: list[str]
) -> None:
    def change(tree: Path) -> None:
        extra = tree / "extra/lib"
        extra.mkdir(parents=True)
        (extra / "libc.so.6").write_bytes(rootfs.host_library("libc.so.6").read_bytes())
        (tree / "etc/ld.so.conf.d/00-extra.conf").write_text("/extra/lib\n")

    def order(result: Result) -> list[str]:
        assert result.code == 0, result.text
        return [line.split("=>")[1].strip() for line in result.out.splitlines() if "libc.so.6" in line]

    name = image(change)
    script = ["/bin/sh", "-c", "/sbin/ldconfig; /sbin/ldconfig -p"]

    plain = order(docker.run([], script, image=name))

    assert len(plain) == 2
    assert order(docker.run(options, script, image=name)) == plain
