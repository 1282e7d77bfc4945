"""Shares in containers, the whole way: an annotation, our hook, crun and runc, and the host that looks and changes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nvc.share import store
from tests.support import leftovers
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.gpuhost import smi
from tests.support.runtimes import OciRuntime, Result
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]

MIB, GIB = 1 << 20, 1 << 30
_TOTAL = ("--query-gpu=memory.total", "--format=csv,noheader,nounits")


@pytest.fixture(autouse=True)
def entries_are_gone(bed: Bed, libraries: Path) -> Any:
    """The library is in the product that the bed installed; no test leaves an entry."""
    there = list(bed.place.glob("product/lib/nvc-py/preload/*/libnvc-shim.so"))
    assert there, "built too late for the bed: tests/gpu/run.sh does it first"
    yield
    for entry in store.entries()[0]:
        with entry:
            if bed.token in entry.record.rootfs:
                store.remove(entry.record.key)


def _container(bed: Bed, programs: Path, command: Sequence[str], share: str) -> Container:
    """With the measuring programs in /usr/bin; libcuda comes with the driver."""
    tree = bed.rootfs()
    for name in ("quota", "burn"):
        shutil.copy(programs / name, tree / "usr/bin" / name)
    hooks = {"prestart": [bed.hook("prestart", machine="")]}
    annotations = {"nvc.share": share} if share else {}
    return Container(tree, command, gpu_env("0"), hooks, annotations=annotations)


def _words(result: Result) -> dict[str, int]:
    assert result.code == 0, result.text
    rows = [line.rpartition(" ") for line in result.out.splitlines()]
    return {name: int(value) for name, _, value in rows if name}


def test_a_container_has_its_memory_and_no_more(bed: Bed, native: OciRuntime, programs: Path, table: Table) -> None:
    command = ["/usr/bin/quota", "malloc", "fill", str(8 * GIB)]

    said = _words(bed.run(native, _container(bed, programs, command, "mem=4Gi")))

    good = (said["total"], said["status"]) == (4 * GIB, 2) and said["free_full"] < 2 * MIB
    table.add(
        f"{native.name}, annotation mem=4Gi: cuMemAlloc until refused",
        goal="4096 MiB in all, then CUDA_ERROR_OUT_OF_MEMORY",
        got=f"total {said['total'] // MIB} MiB, {said['taken'] // MIB} MiB taken, status {said['status']}",
        good=good,
    )
    assert good


def test_nvidia_smi_in_a_container_shows_its_share(bed: Bed, native: OciRuntime, programs: Path, table: Table) -> None:
    result = bed.run(native, _container(bed, programs, ["nvidia-smi", *_TOTAL], "mem=4Gi"))
    whole = bed.run(native, _container(bed, programs, ["nvidia-smi", *_TOTAL], ""))

    table.add(f"{native.name}: nvidia-smi", goal="4096 MiB", got=f"{result.out.strip()} MiB")
    assert (result.code, result.out) == (0, "4096\n"), result.text
    assert whole.out == smi(*_TOTAL)


def test_a_container_has_its_cap(bed: Bed, native: OciRuntime, programs: Path, table: Table) -> None:
    command = ["/bin/sh", "-c", "{ echo rate 0.5; echo rate 3.0; sleep 6; } | burn plain 0.65"]
    rates = {}
    for share in ("", "cap=50%"):
        result = bed.run(native, _container(bed, programs, command, share))
        assert result.code == 0, result.text
        rates[share] = float(result.out.split()[-1])

    error = 100 * rates["cap=50%"] / rates[""] - 50
    table.add(
        f"{native.name}, annotation cap=50%: kernels of 0.65 ms",
        goal="within 1 point",
        got=f"{rates['cap=50%']:.1f}/s",
        base=f"{rates['']:.1f}/s",
        ratio=f"{50 + error:.2f} %",
        good=abs(error) <= 1,
    )
    assert abs(error) <= 1


def test_the_host_sees_and_pauses_a_container(bed: Bed, native: OciRuntime, programs: Path, table: Table) -> None:
    command = ["/bin/sh", "-c", "{ echo gaps 6 250000000; sleep 8; } | burn plain 0.07"]
    name = bed.name("c")
    container = _container(bed, programs, command, "mem=4Gi,weight=20")

    def rows() -> list[dict[str, Any]]:
        listed = bed.call(bed.commands.nvc, "share", "ls", "--json", check=True)
        return [row for row in json.loads(listed.out)["shares"] if row["container"] == name]

    with ThreadPoolExecutor(1) as pool:
        running: Future[Result] = pool.submit(native.run, bed.bundle(container), name)
        try:
            assert leftovers.until(lambda: any(row["processes"] for row in rows()), seconds=20)
            row = rows()[0]
            time.sleep(2)  # the program measures by now
            bed.call(bed.commands.nvc, "share", "pause", name, check=True)
            time.sleep(1)
            bed.call(bed.commands.nvc, "share", "resume", name, check=True)
            result = running.result(60)
        finally:
            native.clean()

    lines = [line.split() for line in result.out.splitlines() if line.startswith("gap ")]
    gaps = [(int(end) - int(begin)) / 1e6 for _, begin, end in lines]
    good = len(gaps) == 1 and 900 <= gaps[0] <= 2500
    table.add(
        f"{native.name}: `nvc-py share pause`, a second, `resume`",
        goal="one gap of that length",
        got=", ".join(f"{gap:.0f} ms" for gap in gaps),
        good=good,
    )
    assert good, result.text
    assert row["limit"] == 4 * GIB
    assert 0 < row["used"] < 4 * GIB
