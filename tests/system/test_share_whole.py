"""A share from the annotation to the last MiB: containers on a simulated machine whose driver answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.share import store
from tests.support import fuse
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.cgroupview import available
from tests.support.engines import Podman
from tests.support.native import build
from tests.support.runtimes import OciRuntime, Result
from tests.support.served import served_machine

fuse.needed()

pytestmark = pytest.mark.system

GIB = 1 << 30
PIECE = 64
#: More pieces of PIECE MiB than a share of 2 GiB has, and fewer than the machine's GPU has.
MORE = ("/usr/bin/cuda_alloc", "100", str(PIECE))
SHARE = {"nvc.share": "mem=2Gi"}


@pytest.fixture
def machine(bed: Bed) -> Iterator[str]:
    """A machine of its own whose nodes are served until the test ends."""
    with served_machine(bed) as name:
        yield name
    for entry in store.entries()[0]:
        with entry:
            if bed.token in entry.record.rootfs:
                store.remove(entry.record.key)


def tree(bed: Bed) -> Path:
    """A root file system with the program; its mode lets every user run it."""
    root = bed.rootfs()
    shutil.copy(build() / "cuda_alloc", root / "usr/bin/cuda_alloc")
    return root


def told(result: Result) -> dict[str, int]:
    assert (result.code, result.complaints) == (0, ""), result.text
    pairs = (line.partition("=") for line in result.out.splitlines() if "=" in line)
    return {key: int(value) for key, _, value in pairs if value.isdigit()}


def check(result: Result) -> None:
    """The program sees 2 GiB, and gets out of memory when less than a piece is left of them, on every way."""
    seen = told(result)
    assert seen["plain_total_kib"] << 10 == 2 * GIB
    assert seen["plain_error"] == seen["virtual_error"] == seen["managed_error"] == 2
    assert 0 <= seen["plain_free_kib"] >> 10 < PIECE
    # A context takes some of it.
    assert 20 < seen["plain"] <= 2 * GIB // (PIECE << 20)
    assert seen["plain"] == seen["virtual"] == seen["managed"]


@pytest.mark.parametrize(
    ("runtime", "stage"), [("runc", "prestart"), ("runc", "createContainer"), ("crun", "createRuntime")]
)
def test_a_program_gets_its_share_and_no_more(
    bed: Bed, ask: Callable[[str, str], OciRuntime], machine: str, runtime: str, stage: str
) -> None:
    view = next(view.name for view in available() if runtime == "runc" or view.name != "hybrid")
    hooks = {stage: [bed.hook(stage, machine=machine)]}
    check(bed.run(ask(runtime, view), Container(tree(bed), MORE, gpu_env("all"), hooks, annotations=SHARE)))


def test_without_a_share_it_gets_all_that_it_wants(bed: Bed, runc: OciRuntime, machine: str) -> None:
    hooks = {"prestart": [bed.hook("prestart", machine=machine)]}
    seen = told(bed.run(runc, Container(tree(bed), MORE, gpu_env("all"), hooks)))

    assert (seen["plain"], seen["plain_error"]) == (100, 0)
    assert seen["plain_total_kib"] << 10 > 100 * GIB


def test_podmans_containers_get_their_share(bed: Bed, need: Callable[..., None], machine: str) -> None:
    need("podman", "conmon", "runc")
    podman = Podman("runc", available()[0], bed.directory("podman"), "", bed.env)
    podman.prepare({"prestart": bed.hook("prestart", machine=machine)})
    name = bed.name("podman")
    try:
        result = podman.run(tree(bed), name, MORE, gpu_env("all"), ("--annotation", "nvc.share=mem=2Gi"))
    finally:
        podman.clean(name)
    check(result)
