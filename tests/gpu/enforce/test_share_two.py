"""Two GPUs in one container: each has its own limits, however it is named, and programs that need both make progress.

Skipped on a machine with one. Multicast over NVLink stays off: it needs the switch's leave, which a part of a machine
may not have.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Shares, Starts
from tests.support import loose_share
from tests.support.bed import Bed
from tests.support.frameworks import require
from tests.support.gpuhost import smi
from tests.support.gpumeasure import HostGpu, used_mib
from tests.support.loose_share import LooseShare
from tests.support.share_kinds import GIB, MIB, OUT_OF_MEMORY, UNCOUNTED
from tests.support.share_table import Table
from tests.support.spoken import Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

Pair = tuple[HostGpu, HostGpu]
LIMITS = (4 * GIB, 6 * GIB)
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
ORDERS = ("PCI_BUS_ID", "FASTEST_FIRST")
#: Of CUDA_VISIBLE_DEVICES. A and B: the UUIDs; a: a beginning of A that is not one of B.
VISIBLE = ("0,1", "1,0", "0", "1", "A", "B", "B,A", "a", "1,1", "0,-1,1", "2", "")
#: Of pair.c.
PIECE = 256 * MIB
#: What the driver may take on the other GPU for what both use.
CLOSE = 4 * MIB
#: For a new cap to be in force; a whole number of periods of 50 ms.
SETTLE, WINDOW, CAPPED = 0.5, 1.5, 4.0
#: Points that ranks which wait for each other may be off: a step that is under way when both GPUs stop ends later.
POINTS = 4.0


def _answers(said: Mapping[str, int]) -> dict[str, int]:
    """What no share may change."""
    return {name: value for name, value in said.items() if name.startswith(("status_", "byte", "bus", "can", "p2p"))}


def _charged(said: Mapping[str, int], where: str) -> tuple[int, int]:
    first, second = (said[f"free_start_{gpu}"] - said[f"free_{where}_{gpu}"] for gpu in (0, 1))
    return first, second


def _is(charged: tuple[int, int], first: int, second: int) -> bool:
    return abs(charged[0] - first) <= CLOSE and abs(charged[1] - second) <= CLOSE


def _rows(said: Mapping[str, int], wheres: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join("{}: {:.1f} and {:.1f}".format(w, *(c / MIB for c in _charged(said, w))) for w in wheres) + " MiB"


def test_each_gpu_is_full_at_its_own_limit(pair_share: Shares, start: Starts, table: Table) -> None:
    held = pair_share({"memory": LIMITS[0]}, {"memory": LIMITS[1]})
    with start("pair", "exact", share=held, **BY_BUS) as program:
        said = program.until_end()

    answers = [(said[f"status_all_{gpu}"], said[f"status_more_{gpu}"]) for gpu in (0, 1)]
    left = [said[f"free_full_{gpu}"] for gpu in (0, 1)]
    good = answers == [(0, OUT_OF_MEMORY)] * 2 and max(left) < 2 * MIB
    table.add(
        "one process, 4 GiB of one GPU and 6 GiB of the other: all that is free of each, then 2 MiB more",
        goal="granted, refused; each by its own limit",
        got=f"{said['asked_0'] >> 20} and {said['asked_1'] >> 20} MiB, {answers}",
        good=good,
    )
    assert good, said
    for gpu, limit in enumerate(LIMITS):
        assert limit - GIB < said[f"asked_{gpu}"] < limit, "a context takes some of it, not much"
        assert said[f"free_end_{gpu}"] == said[f"free_start_{gpu}"]
    assert [held.used(gpu) for gpu in (0, 1)] == [0, 0]


def test_a_gpu_without_a_limit_is_whole_beside_one_with(pair_share: Shares, start: Starts, table: Table) -> None:
    held = pair_share({"memory": LIMITS[0]}, {})
    with start("pair", "seen", PIECE, **BY_BUS) as program:
        bare = program.until("full")
    with start("pair", "seen", PIECE, share=held, **BY_BUS) as program:
        said = program.until("full")

    totals = [said["total_0"], said["total_1"]]
    good = totals == [LIMITS[0], bare["total_1"]] and said["device_total_1"] == bare["device_total_1"]
    table.add(
        "a limit of 4 GiB on one GPU and none on the other: totals",
        goal=f"4096 and {bare['total_1'] >> 20} MiB",
        got=" and ".join(str(total >> 20) for total in totals) + " MiB",
        good=good,
    )
    assert good, said


def _seen(command: list[str], environment: Mapping[str, str]) -> tuple[int, str, dict[str, int]]:
    """Exit status, stderr, and what was said."""
    done = subprocess.run(
        command,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    lines = (line.rpartition(" ") for line in done.stdout.splitlines() if " " in line)
    return done.returncode, done.stderr, {name: int(value) for name, _, value in lines}


def test_however_a_program_picks_its_gpus_each_has_its_own_limit(
    bed: Bed, pair_share: Shares, programs: Path, pair: Pair, table: Table
) -> None:
    """As without the library, also where CUDA refuses; and of every GPU that there is, its limit."""
    held = pair_share({"memory": LIMITS[0]}, {"memory": LIMITS[1]})
    limits = {gpu.bus: limit for gpu, limit in zip(pair, LIMITS, strict=True)}
    one, other = (gpu.uuid for gpu in pair)
    beginning = next(one[:length] for length in range(8, len(one)) if not other.startswith(one[:length]))
    words = {"A": one, "B": other, "a": beginning}
    command = [str(programs / "pair"), "seen", str(PIECE)]
    cases = [(visible, order, preload) for visible in VISIBLE for order in ORDERS for preload in (False, True)]

    def run(case: tuple[str, str, bool]) -> tuple[int, str, dict[str, int]]:
        visible, order, preload = case
        entries = ",".join(words.get(entry, entry) for entry in visible.split(","))
        variables = {"CUDA_VISIBLE_DEVICES": entries, "CUDA_DEVICE_ORDER": order, **(held.variables if preload else {})}
        return _seen(command, {**loose_share.without_ours(os.environ), **bed.env, **variables})

    # Few at once: under the share all of them share one limit.
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(cases, pool.map(run, cases), strict=True))
    wrong, ran = [], 0
    for visible, order, _ in cases[::2]:
        bare, under = found[visible, order, False], found[visible, order, True]
        said = under[2]
        ran += bare[0] == 0
        expected = {name: limits[said[name.replace(kind, "bus")]] for name in said for kind in ("device_total", "total")
                    if name.startswith(f"{kind}_")}  # fmt: skip
        same = under[:2] == bare[:2] and _answers(said) == _answers(bare[2])
        if not same or {name: said[name] for name in expected} != expected or (bare[0] == 0) != bool(expected):
            wrong.append((visible, order, bare, under))
    table.add(
        f"CUDA_VISIBLE_DEVICES in {len(VISIBLE)} forms, CUDA_DEVICE_ORDER in two: {ran} of {len(cases) // 2} run",
        goal="as without the library; of every GPU its own limit",
        got=f"{len(wrong)} wrong",
        good=not wrong,
    )
    assert wrong == []
    assert ran >= 2 * 8, "the forms that name a GPU"


def test_nvidia_smi_shows_each_limit(bed: Bed, pair_share: Shares, pair: Pair, table: Table) -> None:
    held = pair_share({"memory": LIMITS[0]}, {"memory": LIMITS[1]})
    command = ["nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits"]
    environment = {**loose_share.without_ours(os.environ), **bed.env, **held.variables, "CUDA_VISIBLE_DEVICES": "1,0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)

    shown = [tuple(line.split(", ")) for line in done.stdout.splitlines()][:2]
    expected = [(gpu.uuid, str(limit >> 20)) for gpu, limit in zip(pair, LIMITS, strict=True)]
    table.add(
        "nvidia-smi, whatever CUDA_VISIBLE_DEVICES says",
        goal="4096 and 6144 MiB, in its own order",
        got=" and ".join(total for _, total in shown) + " MiB",
        good=shown == expected,
    )
    assert shown == expected


def test_memory_that_both_gpus_use_is_its_owners(pair_share: Shares, start: Starts, table: Table) -> None:
    with start("pair", "peers", **BY_BUS) as program:
        bare = program.until_end()
    with start("pair", "peers", share=pair_share({"memory": LIMITS[0]}, {"memory": LIMITS[1]}), **BY_BUS) as program:
        said = program.until_end()
    assert _answers(said) == _answers(bare)
    if said.get("status_enable_1", said["status_enable_0"]):
        table.add("peers", goal="as without the library", got="the GPUs cannot reach each other", good=True)
        return

    expected = {"first": (PIECE, 0), "second": (PIECE, PIECE), "freed": (0, 0), "both": (PIECE, 0), "end": (0, 0)}
    good = all(_is(_charged(said, where), *owned) for where, owned in expected.items())
    table.add(
        "256 MiB of the first; copied to the second; freed; of the first, mapped for both; unmapped: charged",
        goal="each GPU's own; answers about peers as without the library",
        got=_rows(said, expected),
        good=good,
    )
    assert (said["byte_copied"], said["byte_shared"]) == (41, 42)
    assert good, said


def test_a_pool_is_its_gpus_whatever_stream_takes_from_it(pair_share: Shares, start: Starts, table: Table) -> None:
    with start("pair", "streams", **BY_BUS) as program:
        bare = program.until_end()
    with start("pair", "streams", share=pair_share({"memory": LIMITS[0]}, {"memory": LIMITS[1]}), **BY_BUS) as program:
        said = program.until_end()

    # How much more than a piece the driver reserves where another GPU's stream asks is its own business.
    expected = {
        where: (_charged(bare, where)[0], _charged(bare, where)[1]) for where in ("taken", "given", "own", "end")
    }
    good = (
        expected["taken"][0] >= PIECE
        and expected["own"][1] >= PIECE
        and all(_is(_charged(said, where), *owned) for where, owned in expected.items())
    )
    table.add(
        "256 MiB of the first's pool on a stream of the second; given back; of the second's own pool",
        goal="as the driver itself has less of each GPU: " + _rows(bare, expected),
        got=_rows(said, expected),
        good=good,
    )
    assert _answers(said) == _answers(bare)
    assert (said["status_take"], said["status_own"]) == (0, 0)
    assert good, said


def test_a_cap_on_one_gpu_leaves_the_other_alone(pair_share: Shares, start: Starts, pair: Pair, table: Table) -> None:
    held = pair_share({"memory": LIMITS[0]}, {"memory": LIMITS[1]})
    programs = [start("burn", "plain", 0.65, share=held, CUDA_VISIBLE_DEVICES=gpu.uuid) for gpu in pair]
    for program in programs:
        program.line()

    _measure(programs, SETTLE)
    before = _measure(programs, WINDOW)
    held.set(index=0, cap=300)
    for program in programs:
        program.ask("look")
    _measure(programs, SETTLE)
    capped = _measure(programs, 2.0)

    ratios = [100 * now / was for now, was in zip(capped, before, strict=True)]
    good = abs(ratios[0] - 30) <= 1 and ratios[1] >= 98
    table.add(
        "a cap of 30 % on one GPU, none on the other; a program on each",
        goal="30 % within a point, and all of the other",
        got=f"{ratios[0]:.2f} % and {ratios[1]:.2f} %",
        good=good,
    )
    assert good


def _measure(programs: list[Spoken], seconds: float) -> list[float]:
    """Of all, over the same time."""
    for program in programs:
        program.tell(f"rate {seconds}")
    return [float(program.line()) for program in programs]


def _steps(ranks: list[Spoken], seconds: float, work: str = "cycles") -> float:
    """A second, of all ranks together."""
    for program in ranks:
        program.tell(f"rate {seconds} {work}")
    first, *_ = [float(program.line()) for program in ranks]
    return first


def _clocked(ranks: list[Spoken], seconds: float, work: str) -> tuple[float, int]:
    """``_steps``, and the MHz of the first GPU's processors meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        steps = pool.submit(_steps, ranks, seconds, work)
        found = []
        while not steps.done():
            found.append(int(smi("--query-gpu=clocks.sm", "--format=csv,noheader,nounits").splitlines()[0]))
        return steps.result(), round(statistics.median(found))


def _check(programs: list[Spoken]) -> bool:
    """Does an all-reduce give the right sum, on every rank?"""
    for program in programs:
        program.tell("check")
    return [program.line() for program in programs] == ["1", "1"]


def _ranks(start: Starts, held: LooseShare | None) -> list[Spoken]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    more = {"NCCL_NVLS_ENABLE": "0"}
    programs = [start("torch_ranks.py", rank, 2, port, share=held, seconds=60, **more, **BY_BUS) for rank in (0, 1)]
    for program in programs:
        assert program.line() == "ready"
    return programs


@pytest.mark.timeout(150)
def test_ranks_on_two_gpus_share_caps_and_make_progress(pair_share: Shares, start: Starts, table: Table) -> None:
    """NCCL between two processes of one container, with a memory limit and then caps on both GPUs, and on one."""
    require("torch")
    before = [used_mib(gpu) for gpu in (0, 1)]
    bare = _ranks(start, None)
    _steps(bare, SETTLE)
    native = _steps(bare, WINDOW)
    for program in bare:
        program.kill()
    held = pair_share({"memory": 16 * GIB}, {"memory": 16 * GIB})
    ranks = _ranks(start, held)
    _steps(ranks, SETTLE)
    counted = [held.used(gpu) / MIB for gpu in (0, 1)]
    real = [used_mib(gpu) - before[gpu] for gpu in (0, 1)]
    sound = _check(ranks)

    found: dict[tuple[int, int], float] = {}
    solo = _steps(ranks, WINDOW)
    for caps in ((500, 500), (250, 250), (500, 1000)):
        _cap(held, caps)
        _steps(ranks, SETTLE)
        rate = _steps(ranks, CAPPED)
        sound = sound and _check(ranks)
        _cap(held, (1000, 1000))
        _steps(ranks, SETTLE)
        after = _steps(ranks, WINDOW)
        found[caps] = 100 * rate / ((solo + after) / 2)
        solo = after
    _steps(ranks, SETTLE, "products")
    hot = _clocked(ranks, WINDOW, "products")
    _cap(held, (500, 500))
    _steps(ranks, SETTLE, "products")
    cool = _clocked(ranks, WINDOW, "products")
    ends = [program.end() for program in ranks]

    apart = [there - here for here, there in zip(counted, real, strict=True)]
    table.add(
        "two ranks (kernels and NCCL all-reduces, a limit of 16 GiB each): counted; more in nvidia-smi",
        goal=f"no more than {UNCOUNTED} MiB apart",
        got=" and ".join(f"{here:.1f}; {there} MiB" for here, there in zip(counted, real, strict=True)),
        good=max(map(abs, apart)) <= UNCOUNTED,
    )
    table.add(
        "the same, steps", got=f"{solo:.1f}/s", base=f"{native:.1f}/s without the library", ratio=f"{solo / native:.4f}"
    )
    for caps, ratio in found.items():
        goal = min(caps) / 10
        table.add(
            "the same, caps {:.0f} % and {:.0f} %".format(*(cap / 10 for cap in caps)),
            goal=f"{goal:.0f} % within {POINTS:g} points, and no hang",
            got=f"{ratio:.2f} % ({ratio - goal:+.2f})",
            good=abs(ratio - goal) <= POINTS,
        )
    table.add(
        "the same with products of matrices (all the power that a GPU may draw), caps 50 % and 50 %",
        got=f"{cool[0]:.1f}/s at {cool[1]} MHz",
        base=f"{hot[0]:.1f}/s at {hot[1]} MHz",
        ratio=f"{100 * cool[0] / hot[0]:.2f} % of the steps, {cool[1] / hot[1]:.2f} x the clock",
    )
    assert sound, "an all-reduce gave a wrong sum"
    assert ends == [0, 0]
    assert [held.used(gpu) for gpu in (0, 1)] == [0, 0]
    assert solo / native >= 0.95
    assert max(map(abs, apart)) <= UNCOUNTED
    assert {caps: ratio for caps, ratio in found.items() if abs(ratio - min(caps) / 10) > POINTS} == {}


def _cap(held: LooseShare, caps: tuple[int, int]) -> None:
    for gpu, cap in enumerate(caps):
        held.set(index=gpu, cap=cap)
