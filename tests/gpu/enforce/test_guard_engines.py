"""Ways round weight and cap by the engine that a group says, and by how channels begin (native/rm/schedule.c, start.c).

What only source says of the driver is written down without a guard first; nothing is asserted of it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import PROGRAMS, Starts, streams
from tests.support.bed import Bed
from tests.support.gpumeasure import compile_programs
from tests.support.guarded import GuardedTenant, Guarding
from tests.support.share_kinds import GIB
from tests.support.share_table import Table
from tests.support.spoken import Silent, Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system]

CAP, POINTS = 20, 1.0
SETTLE, MEASURED = 0.3, 2.0
SHORT, LONG = 0.65, 30
#: NV2080_ENGINE_TYPE_*: of compute; a copy engine of its own runlist; one on the runlist of compute.
GRAPHICS, COPY, WITH_GRAPHICS = 1, 11, 9
#: libcuda's copy groups are of COPY2 to COPY4 (H200, 580.159.04).
COPIES = (11, 12, 13)
PROGRAM = 15
#: Of one that may never end.
BRIEF = 7


@pytest.fixture(scope="module")
def programs(whole_bed: Bed) -> Path:
    sources = [PROGRAMS / name for name in ("burn.cu", "open_facts.c")]
    return compile_programs(sources, whole_bed.directory("programs"))


def _noted(out: Path) -> str:
    """In the order of their first times."""
    lines = out.read_text().splitlines() if out.exists() else []
    return "; ".join(f"{line} ({lines.count(line)})" for line in dict.fromkeys(lines)) or "nothing"


def _line(program: Spoken) -> str:
    """What a program that may not start says first; empty: it ended."""
    try:
        return program.line()
    except Silent:
        return ""


@pytest.mark.parametrize(
    "words",
    [
        "facts",
        "delayed",
        f"move={GRAPHICS}:{COPY}",
        f"move={GRAPHICS}:{WITH_GRAPHICS}",
        f"move={COPY}:{WITH_GRAPHICS}",
        f"move={COPY}:{GRAPHICS}",
        "lone",
    ],
)
def test_what_the_driver_makes_of_engines(
    bed: Bed, environment: dict[str, str], programs: Path, interposers: str, table: Table, words: str
) -> None:
    """Facts, without a guard: which engines libcuda says, and which programs still compute (``done 64``)."""
    out = bed.directory("facts") / "out"
    more = {"LD_PRELOAD": interposers, "ENGINES": words, "INTERPOSE_OUT": str(out), "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    said = streams(programs, {**environment, **more}, PROGRAM)
    table.add(f"engines: {words}", got=f"{said}; {_noted(out)}")


@pytest.mark.parametrize(
    "words",
    [
        "///slice",
        "//each/slice",
        "//each,on/slice",
        "//each/slice,on",
        "//each/slice,each",
        "//each/slice,preempt",
        "//each/slice,level",
        "//each/slice,stop,go",
        "//each/slice,on,slice",
    ],
)
def test_when_a_timeslice_is_in_force(
    bed: Bed, start: Starts, programs: Path, interposers: str, table: Table, words: str
) -> None:
    """n53, n56, facts: 8192 us written later, beside a group of 2048. In force: 80 %, not: 50. Without a guard."""
    out = bed.directory("slice") / "out"
    more = {"LD_PRELOAD": interposers.replace("interpose.so", "begin.so"), "BEGIN": words, "INTERPOSE_OUT": str(out)}
    part = 0.0
    with start("burn", "plain", SHORT, seconds=PROGRAM, **more) as one:
        said = _line(one)
        if said:
            with start("burn", "plain", SHORT, said.split()[2]) as other:
                other.line()
                for _ in range(50):
                    if "3 done" in _noted(out):
                        break
                    time.sleep(0.1)
                rates = [1.0, 1.0]
                for seconds in (SETTLE, MEASURED):
                    for program in (one, other):
                        program.tell(f"rate {seconds}")
                    rates = [float(program.line()) for program in (one, other)]
                part = 100 * rates[0] / sum(rates)
    table.add(f"8192 us later: {words}", got=f"{f'{part:.2f} %' if said else 'did not start'}; {_noted(out)}")
    assert "3 done" in _noted(out) or not said


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        ("facts", "///"),
        ("unasked", "///"),
        ("unasked", "cilp///"),
        ("unasked", "//cilp,on/"),
        ("unasked", "//cilp-channel,on/"),
        ("unasked", "///cilp"),
        ("unasked", "///cilp-channel"),
    ],
)
def test_when_a_preemption_mode_is_in_force(
    bed: Bed, start: Starts, programs: Path, interposers: str, table: Table, asks: str, words: str
) -> None:
    """C7, facts: kernels of 30 ms that stop at any instruction leave a neighbour half of the time. Without a guard."""
    out = bed.directory("mode") / "out"
    more = {"LD_PRELOAD": interposers.replace("interpose.so", "begin.so"), "BEGIN": words, "INTERPOSE_OUT": str(out)}
    rates = []
    with start("burn", "plain", SHORT) as neighbour:
        neighbour.line()
        with start("burn", "long", LONG, seconds=PROGRAM, ENGINES=asks, **more) as one:
            said = _line(one)
            time.sleep(2)
            for program in (neighbour, one) if said else ():
                program.tell(f"rate {MEASURED}")
            rates = [float(program.line()) for program in (neighbour, one)] if said else []
    table.add(f"kernels of {LONG} ms, {asks}: {words}", got=f"neighbour, it: {rates} a second; {_noted(out)}")
    assert not said or min(rates) > 0


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("//on,clone,clone-delayed,clone-plain,clone-plain-delayed/", "facts"),
        ("//clone-plain,clone-plain-delayed,on/", "facts"),
        ("//on/", "delayed"),
        ("//each/", "delayed"),
        ("on//each/", "delayed"),
        ("on//on/", "delayed"),
        ("on//none/", "delayed"),
        ("//on,stop-last/", "facts"),
        ("cilp,child/cilp,cilp-channel,child/cilp,cilp-channel,on,child,groups,channels/", "facts"),
    ],
)
def test_which_channels_run(
    bed: Bed, environment: dict[str, str], programs: Path, interposers: str, table: Table, words: str, flags: str
) -> None:
    """n23, n53, n57, facts: of a group that was started before its channels were made; which the driver tells of."""
    out = bed.directory("begin") / "out"
    more = {"LD_PRELOAD": interposers.replace("interpose.so", "begin.so"), "BEGIN": words, "INTERPOSE_OUT": str(out)}
    said = streams(programs, {**environment, **more, "ENGINES": flags, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}, BRIEF)
    table.add(f"channels, {flags}: {words}", got=f"{said}; {_noted(out)}")
    assert out.exists(), said


@pytest.mark.parametrize(
    ("words", "milliseconds"),
    [
        (f"move={GRAPHICS}:{COPY}", SHORT),
        (f"move={GRAPHICS}:{WITH_GRAPHICS}", SHORT),
        ("delayed", SHORT),
        ("unasked", LONG),
        ("lone", SHORT),
    ],
)
def test_a_cap_holds_whatever_a_group_says(
    bed: Bed,
    guarding: Guarding,
    start: Starts,
    programs: Path,
    interposers: str,
    table: Table,
    words: str,
    milliseconds: float,
) -> None:
    """A program that the guard keeps from starting has nothing."""
    out = bed.directory("capped") / "out"
    tenant = guarding.tenant(memory=8 * GIB)
    part = 0.0
    more = {"LD_PRELOAD": interposers, "ENGINES": words, "INTERPOSE_OUT": str(out)}
    with start(
        "burn", "long" if milliseconds == LONG else "plain", milliseconds, tenant=tenant, seconds=PROGRAM, **more
    ) as program:
        first = _line(program)
        if first:
            rates = []
            for cap in (100, CAP):
                tenant.set(cap=cap * 10)
                program.ask(f"rate {SETTLE}")
                rates.append(float(program.ask(f"rate {MEASURED}")))
            part = 100 * rates[1] / rates[0]
    good = part <= CAP + POINTS
    table.add(
        f"{words}, kernels of {milliseconds} ms, cap {CAP} %",
        goal=f"<= {CAP + POINTS:g} %, or it does not start",
        got=f"{f'{part:.2f} %' if first else 'did not start'}; {_noted(out)}; refused {dict(tenant.refused())}",
        good=good,
    )
    assert good


@pytest.mark.parametrize("words", ["lone", "delayed"])
def test_a_changed_weight_is_in_force(
    bed: Bed, guarding: Guarding, start: Starts, programs: Path, interposers: str, table: Table, words: str
) -> None:
    """n56, of channels without a group: whether SET_CHANNEL_PROPERTIES of one that runs is in force is not known."""
    out = bed.directory("weight") / "out"
    one, other = (guarding.tenant(memory=8 * GIB, weight=50) for _ in range(2))
    part, first_said = 0.0, ""
    more = {"LD_PRELOAD": interposers, "ENGINES": words, "INTERPOSE_OUT": str(out)}
    with start("burn", "plain", SHORT, tenant=one, seconds=PROGRAM, **more) as first:
        first_said = _line(first)
        if first_said:
            with start("burn", "plain", SHORT, first_said.split()[2], tenant=other) as second:
                second.line()
                one.set(weight=10)
                other.set(weight=90)
                rates = [1.0, 1.0]
                for seconds in (SETTLE, MEASURED):
                    for program in (first, second):
                        program.tell(f"rate {seconds}")
                    rates = [float(program.line()) for program in (first, second)]
                part = 100 * rates[0] / sum(rates)
    good = not first_said or abs(part - 10) <= POINTS
    table.add(
        f"{words}: weight 50, then 10 of 100",
        goal=f"within {POINTS:g} points, or it does not start",
        got=f"{f'{part:.2f} %' if first_said else 'did not start'}; {_noted(out)}",
        good=good,
    )
    assert good


@pytest.mark.parametrize("words", ["facts", *(f"move={copy}:{WITH_GRAPHICS}" for copy in COPIES)])
def test_copies_take_no_more_of_compute_than_their_cap(
    bed: Bed, guarding: Guarding, start: Starts, programs: Path, interposers: str, table: Table, words: str
) -> None:
    """Copies of an engine on the graphics engine's runlist take turns with a neighbour's kernels."""
    out = bed.directory("copies") / "out"
    computes, copies = guarding.tenant(memory=8 * GIB), guarding.tenant(memory=8 * GIB, cap=10 * 10)
    more = {"LD_PRELOAD": interposers, "ENGINES": words, "INTERPOSE_OUT": str(out)}
    with start("burn", "plain", SHORT, tenant=computes) as program:
        program.line()
        program.ask(f"rate {SETTLE}")
        solo = float(program.ask(f"rate {MEASURED}"))
        with start("open_facts", "copies", tenant=copies, seconds=PROGRAM, **more) as copier:
            said = _line(copier)
            program.ask(f"rate {SETTLE}")
            before = copier.ask("") if said else ""
            beside = float(program.ask(f"rate {MEASURED}"))
            said += f", {before} and {copier.ask('')} rounds of 512 MiB" if said else ""
    part = 100 * beside / solo
    # A tenth of the time, and the switches of phases.
    good = part >= 100 - 10 - 3
    table.add(
        f"copies of {words} under a cap of 10 %, beside kernels",
        goal=">= 87 % for the neighbour",
        got=f"{said or 'did not start'}; {_noted(out)}",
        base=f"{solo:.2f}/s",
        ratio=f"{part:.2f} %",
        good=good,
    )
    assert good


def test_a_wait_for_an_idle_channel_delays_no_neighbour(
    bed: Bed, guarding: Guarding, start: Starts, programs: Path, interposers: str, table: Table
) -> None:
    """0x41 of channels that compute for a second at a time: the driver may wait with the GPU's lock, for 100 ms."""
    out = bed.directory("idle") / "out"
    waits, capped = guarding.tenant(memory=8 * GIB), guarding.tenant(memory=8 * GIB, cap=CAP * 10)
    more = {"LD_PRELOAD": interposers, "INTERPOSE_OUT": str(out)}
    rates = []
    with start("burn", "plain", SHORT, tenant=capped) as program:
        program.line()
        for words in ("facts", "idle"):
            with start("burn", "long", 1000, tenant=waits, ENGINES=words, **more) as waiter:
                waiter.line()
                program.ask(f"rate {SETTLE}")
                rates.append(float(program.ask(f"rate {5 * MEASURED}")))
    part = 100 * rates[1] / rates[0]
    good = part >= 90 and not _ended(capped)
    table.add(
        f"0x41 beside a tenant with cap {CAP} %, against the same program without it",
        goal=">= 90 %, nothing ended",
        got=f"{_noted(out)}; refused {dict(capped.refused())}",
        base=f"{rates[0]:.2f}/s",
        ratio=f"{part:.2f} %",
        good=good,
    )
    assert good


def _ended(tenant: GuardedTenant) -> bool:
    return tenant.refused().get("edge-late", 0) > 0
