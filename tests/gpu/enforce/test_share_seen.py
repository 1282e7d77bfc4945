"""Every way to ask for the GPU's memory gets the same answer."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Shares, Starts
from tests.support import loose_share
from tests.support.bed import Bed
from tests.support.frameworks import Frameworks, require
from tests.support.gpuhost import smi
from tests.support.loose_share import LooseShare
from tests.support.share_kinds import GIB, MIB, UNCOUNTED
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]

LIMIT, HELD = 10 * GIB, GIB
_FIELDS = "--query-gpu=memory.total,memory.used,memory.free"
#: Of torch_driver_usage.py.
_STAGES = ("context", "cublas", "cudnn", "cusolver", "tensors")
_TORCH = "import torch; print(*torch.cuda.mem_get_info(), torch.cuda.get_device_properties(0).total_memory)"


def _under(bed: Bed, held: LooseShare, command: Sequence[str]) -> str:
    environment = {**loose_share.without_ours(os.environ), **bed.env, **held.variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_totals_are_the_limit_and_all_free_is_the_same(
    bed: Bed, share: Shares, start: Starts, table: Table
) -> None:
    held = share(memory=LIMIT)

    with start("seen", HELD, share=held) as program:
        said = program.until("full")
        used = held.used()
        total, smi_used, smi_free = map(
            int, _under(bed, held, ["nvidia-smi", _FIELDS, "--format=csv,noheader,nounits"]).split(", ")
        )
        table_text = _under(bed, held, ["nvidia-smi"])

    totals = {name: value for name, value in said.items() if "otal" in name or name == "cudaGetDeviceProperties"}
    frees = {name: value for name, value in said.items() if name.endswith("_free")}
    good = set(totals.values()) == {LIMIT} and set(frees.values()) == {LIMIT - used} and total == LIMIT // MIB
    table.add(
        f"{HELD >> 20} MiB held of 10 GiB: totals of {len(totals)} calls; nvidia-smi",
        goal="10240 MiB each",
        got=f"{sorted({value // MIB for value in totals.values()})} MiB; {total} MiB",
        good=set(totals.values()) == {LIMIT} and total == LIMIT // MIB,
    )
    table.add(
        "free of the same; the region; nvidia-smi",
        goal="the same",
        got=f"{sorted({value // MIB for value in frees.values()})} MiB; {(LIMIT - used) // MIB} MiB; {smi_free} MiB",
        good=good,
    )
    assert dict.fromkeys(totals, LIMIT) == totals
    assert dict.fromkeys(frees, LIMIT - used) == frees
    assert said["nvml_v1_used"] == used
    assert said["nvml_v2_used"] + said["nvml_v2_reserved"] == used
    assert LIMIT // MIB == total
    assert smi_used <= used / MIB + 1, "what the driver keeps for itself is not in it"
    assert abs(smi_free - (LIMIT - used) / MIB) <= 1
    assert re.search(rf"\b{smi_used}MiB */ *{total}MiB\b", table_text), table_text


def test_pytorch_sees_the_limit(bed: Bed, share: Shares, table: Table) -> None:
    require("torch")
    held = share(memory=LIMIT)

    free, total, properties = map(int, _under(bed, held, [Frameworks.find().interpreter, "-c", _TORCH]).split())

    good = (total, properties) == (LIMIT, LIMIT) and 0 < free < LIMIT
    table.add(
        "torch.cuda.mem_get_info, get_device_properties",
        goal="10240 MiB",
        got=f"{total // MIB} MiB, {properties // MIB} MiB, {free // MIB} MiB free",
        good=good,
    )
    assert good


def test_a_share_without_a_limit_shows_the_whole_gpu(bed: Bed, share: Shares, table: Table) -> None:
    held = share(cap=500)
    command = [_FIELDS, "--format=csv,noheader,nounits"]

    with_share = _under(bed, held, ["nvidia-smi", *command])
    without = smi(*command)

    table.add(
        "no memory limit: nvidia-smi", goal="as without a share", got=with_share.strip(), good=with_share == without
    )
    assert with_share == without


def test_a_full_or_overdrawn_share_has_nothing_free(share: Shares, start: Starts, table: Table) -> None:
    held = share(memory=4 * GIB)

    with start("seen", 3 * GIB, share=held) as first:
        first.until("full")
        held.set(memory=8 * GIB)
        with start("seen", MIB, share=held) as second:
            more = second.until("full")
    held.set(memory=3 * GIB)
    with start("quota", "malloc", "fill", 6 * GIB, share=held) as program:
        program.until("full")
        held.set(memory=GIB)
        program.tell("")
        overdrawn = program.until("done")

    table.add(
        "limit lowered below what is used",
        goal="free 0, not a number below it",
        got=f"free {overdrawn['free_end']} after everything was given back",
        good=0 <= overdrawn["free_end"] <= GIB,
    )
    assert more["cuMemGetInfo_total"] == 8 * GIB
    assert 0 <= overdrawn["free_end"] <= GIB


def test_the_list_of_processes_is_the_containers_own(bed: Bed, share: Shares, start: Starts, programs: Path) -> None:
    mine, other = share(memory=4 * GIB), share(memory=4 * GIB)
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]

    with start("seen", MIB, share=mine) as first, start("seen", MIB, share=other) as second:
        first.until("full")
        second.until("full")
        listed = {int(word) for word in _under(bed, mine, query).split()}

    assert second.process.pid not in listed
    assert listed <= {first.process.pid}


@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST"])
@pytest.mark.parametrize("visible", ["0", "UUID", "UUID-beginning", "0,0", "-1", "", "1"])
def test_however_a_program_picks_its_gpus_the_share_is_that_gpus(
    bed: Bed, share: Shares, programs: Path, visible: str, order: str
) -> None:
    """The limit, where CUDA gives the program a GPU; CUDA's own error where it does not, as without the library."""
    held = share(memory=LIMIT)
    uuid = held.limits.gpus[0].uuid
    variables = {"CUDA_VISIBLE_DEVICES": visible.replace("UUID-beginning", uuid[:12]).replace("UUID", uuid)}
    variables["CUDA_DEVICE_ORDER"] = order
    environment = {**loose_share.without_ours(os.environ), **bed.env, **variables}
    command = [str(programs / "quota"), "malloc", "exact"]

    bare = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    environment |= held.variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (bare.returncode, bare.stderr)
    if done.returncode == 0:
        assert f"total {LIMIT}" in done.stdout.splitlines()
    else:
        assert visible in ("-1", "", "1", "0,0")


def test_what_is_counted_is_what_the_driver_says_to_the_host(
    share: Shares, start: Starts, table: Table, driver_usage: Callable[[], int]
) -> None:
    """Contexts, modules and the libraries' workspaces: the share's number against nvidia-smi's without a share."""
    require("torch")
    held = share(memory=LIMIT)
    before, found = driver_usage(), {}

    with start("torch_driver_usage.py", share=held, seconds=80) as program:
        for stage in _STAGES:
            program.until(stage)
            found[stage] = held.used() / MIB, driver_usage() - before
            program.tell("")
        program.line()

    for stage, (counted, real) in found.items():
        table.add(
            f"PyTorch, after {stage}: counted by the share; more in nvidia-smi of the host",
            goal=f"no more than {UNCOUNTED} MiB apart",
            got=f"{counted:.1f} MiB; {real} MiB ({real - counted:+.1f})",
            good=abs(real - counted) <= UNCOUNTED,
        )
    assert found["tensors"][0] - found["cusolver"][0] >= 2 * GIB // MIB
    assert found["context"][0] > 0
    assert {stage: at for stage, at in found.items() if abs(at[1] - at[0]) > UNCOUNTED} == {}
