"""What a service waits for beside a neighbour, lever by lever: each row a fact, whatever it shows; there are no goals.

Programs without a guard; the controls are made from outside on copies of their descriptors, as a guard makes them
(levers.c), so that a row is of one control alone. A row that cannot be measured says why, and the next one is.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import Starts
from tests.support.bed import Bed
from tests.support.share_table import Table, percentile
from tests.support.spoken import Silent, Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(120)]

#: Seconds of a window, and before one for what was launched before; the part of the time that requests take alone.
WINDOW, SETTLE, LOAD, SEED = 3.0, 0.2, 0.3, 20261125
KERNEL = 0.65
#: libcuda's own slice; those that a neighbour is tried with.
OWN_US = 2048
SLICES = (50, 100, 200, 500, 1000)


class Levers:
    """levers.c beside one or two programs; answers of lines as lists of words."""

    def __init__(self, program: Spoken) -> None:
        self.program = program
        assert program.line() == "ready"

    def ask(self, line: str) -> list[list[str]]:
        self.program.tell(line)
        return self.answer()

    def answer(self) -> list[list[str]]:
        return [line.split() for line in iter(self.program.line, "end")]

    def do(self, line: str) -> str:
        """A control: microseconds of the call, and its status where that is not 0."""
        ((_, took, status),) = self.ask(line)
        return f"{int(took) / 1000:.0f} us" + (f", status {int(status):#x}" if int(status) else "")


class Pair:
    """Starts programs whose objects are written down, and levers on them."""

    def __init__(self, start: Starts, programs: Path, place: Path) -> None:
        self._start, self._programs, self._place, self._count = start, programs, place, itertools.count()
        self._files: dict[int, Path] = {}

    def begin(self, program: str, *arguments: object) -> Spoken:
        file = self._place / f"handles{next(self._count)}"
        preload = {"LD_PRELOAD": str(self._programs / "handles.so"), "HANDLES": str(file)}
        begun = self._start(program, *arguments, **preload)
        self._files[id(begun)] = file
        assert begun.line().startswith("ready")
        return begun

    def levers(self, *of: Spoken) -> Levers:
        words: list[object] = []
        for one in of:
            words += [one.process.pid, self._files[id(one)]]
        return Levers(self._start("levers", *words))


@pytest.fixture
def pair(bed: Bed, programs: Path, start: Starts) -> Pair:
    return Pair(start, programs, bed.directory("handles"))


@contextlib.contextmanager
def row(table: Table, what: str) -> Iterator[Callable[..., None]]:
    """Adds one row; what cannot be measured is said in it."""
    begun = time.monotonic()

    def say(got: str, base: str = "", ratio: str = "") -> None:
        print(f"{what}: {got} {ratio} ({time.monotonic() - begun:.1f} s)", flush=True)
        table.add(what, got=got, base=base, ratio=ratio)

    try:
        yield say
    except (Silent, ValueError, ZeroDivisionError, statistics.StatisticsError) as error:
        say(f"not measured: {' '.join(str(error).split())[:300]}")


class Load:
    """A service of requests of ``milliseconds``, and its neighbour; windows with the same arrivals."""

    def __init__(self, pair: Pair, milliseconds: float, kernels: int) -> None:
        self.rate = 1000 * LOAD / milliseconds
        self.service = pair.begin("work", "serve", milliseconds, kernels)
        self.alone = self.window()
        self.neighbour = pair.begin("burn", "plain", KERNEL)
        self.neighbour.ask(f"rate {SETTLE}")
        self.most = float(self.neighbour.ask("rate 1"))
        self.levers = pair.levers(self.service, self.neighbour)

    def window(self) -> list[float]:
        """Microseconds: p50, p95, p99, longest; count; left out."""
        count, *times, out = self.service.ask(f"open {self.rate} {WINDOW} {SEED}").split()
        return [*map(float, times), int(count), int(out)]

    def beside(self, say: Callable[..., None], *, during: str = "") -> None:
        """during: a line for the levers, whose answer is part of the row."""
        time.sleep(SETTLE)
        self.neighbour.tell(f"rate {WINDOW}")
        if during:
            self.levers.program.tell(during)
        got = self.window()
        kept = float(self.neighbour.line()) / self.most
        words = {name: value for name, value, *_ in self.levers.answer() if name != "put"} if during else {}
        say(
            f"p50 {got[0] / 1000:.2f}, p95 {got[1] / 1000:.2f}, p99 {got[2] / 1000:.2f}, max {got[3] / 1000:.2f} ms of "
            f"{got[4]:.0f} ({got[5]:.0f} left out)" + "".join(f", {name} {value}" for name, value in words.items()),
            f"alone p50 {self.alone[0] / 1000:.2f}, p99 {self.alone[2] / 1000:.2f} ms",
            f"p50 {got[0] / self.alone[0]:.2f} x, +{(got[0] - self.alone[0]) / 1000:.2f} ms; "
            f"p99 {got[2] / self.alone[2]:.2f} x, +{(got[2] - self.alone[2]) / 1000:.2f} ms; neighbour {kept:.3f}",
        )


def test_stops(pair: Pair, table: Table) -> None:
    """How soon a stop is in force and over, by the pieces of work that the program counts."""
    count, off_us, on_us = 15, 8_000, 12_000
    burn = pair.begin("burn", "plain", 0.05)
    burn.ask("rate 0.5")
    levers = pair.levers(burn)
    for kind, what in (
        ("freeze", "FIFO_DISABLE_CHANNELS"),
        ("scheduling", "FIFO_DISABLE_CHANNELS, only scheduling"),
        ("slice", "timeslice 0, back to 2048 us"),
    ):
        with row(table, f"stop by {what}, {count} times") as say:
            seconds = count * (off_us + on_us) / 1e6 + 0.3
            burn.tell(f"gaps {seconds} 1000000")
            time.sleep(0.1)
            stops = [[*map(int, one[1:])] for one in levers.ask(f"toggle {kind} {count} {off_us} {on_us}")]
            gaps = [[*map(int, one.split()[1:])] for one in iter(burn.line, "end")]
            calls = [statistics.median((one[at + 1] - one[at]) / 1e6 for one in stops) for at in (0, 2)]
            stopped, back = [], []
            for begin, _, again, _, _ in stops:
                found = [gap for gap in gaps if gap[0] < again and gap[1] > begin + off_us * 500]
                if found:
                    stopped.append((found[0][0] - begin) / 1e6)
                    back.append((found[0][1] - again) / 1e6)
            say(
                f"{len(stopped)} of {count} stopped it; in force after {_spread(stopped)} ms, "
                f"back after {_spread(back)} ms",
                f"calls {calls[0]:.3f}, {calls[1]:.3f} ms; statuses {sorted({one[4] for one in stops})}",
            )
    levers.do(f"slice {OWN_US}")
    with row(table, "timeslice 0 beside another program with work: kernels of 0.05 ms a second of each") as say:
        other = pair.begin("burn", "plain", 0.05)
        found = []
        for microseconds in (OWN_US, 0, 1, OWN_US):
            levers.do(f"slice {microseconds}")
            for one in (burn, other):
                one.tell("rate 0.5")
            found.append(f"{microseconds} us: " + " : ".join(f"{float(one.line()):.0f}" for one in (burn, other)))
        say("; ".join(found))


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}"


def _two(pair: Pair, shape: tuple[object, ...]) -> tuple[Spoken, Spoken, float]:
    """Two saturating programs of one shape, and what one does alone."""
    first = pair.begin("work", "busy", *shape)
    first.ask("rate 0.3")
    alone = float(first.ask("rate 1"))
    return first, pair.begin("work", "busy", *shape), alone


def _together(programs: tuple[Spoken, Spoken], seconds: float = 1.0) -> float:
    for one in programs:
        one.tell(f"rate {seconds}")
    return sum(float(one.line()) for one in programs)


@pytest.mark.parametrize(
    ("what", "shape"),
    [
        ("full: 2 blocks of 1024 threads a multiprocessor", (0.2, 1024, 2)),
        ("a block of 32 threads a multiprocessor", (0.2, 32, 1)),
    ],
)
def test_what_a_switch_takes(pair: Pair, start: Starts, table: Table, what: str, shape: tuple[object, ...]) -> None:
    first, second, alone = _two(pair, shape)
    levers = [pair.levers(one) for one in (first, second)]

    def slices(microseconds: int) -> None:
        for one in levers:
            one.do(f"slice {microseconds}")

    def switch(say: Callable[..., None], microseconds: int, more: str = "") -> None:
        ratio = _together((first, second)) / alone
        say(
            f"together {ratio:.3f} of one alone: {microseconds * (1 / ratio - 1):.0f} us a switch{more}",
            f"{alone:.0f}/s alone",
        )

    for microseconds in (200, 1000, 4000):
        with row(table, f"switches, {what}: slices of {microseconds} us") as say:
            slices(microseconds)
            switch(say, microseconds)
    slices(1000)
    with row(table, f"switches, {what}: their steps, by the driver's trace") as say:
        trace = start("switches", 2, "full")
        for one in (first, second):
            one.tell("rate 2.5")
        said = trace.until("end")
        for one in (first, second):
            one.line()
        names = sorted(
            name.removesuffix("_count") for name in said if name.startswith("step_") and name.endswith("_count")
        )
        steps = []
        for name in names:
            count, mean = said[f"{name}_count"], said[f"{name}_ns"] / said[f"{name}_count"] / 1000
            steps.append(f"{name.removeprefix('step_').replace('_', ' to ')}: {mean:.1f} us ({count})")
        facts = ("memory_header", "bound", "reason", "enabled", "records", "lost", "hidden", "news")
        say("; ".join(steps) or "no steps", ", ".join(f"{name} {said.get(name, '-')}" for name in facts))
    with row(table, f"switches, {what}: what the driver says; ns of the call, status, answer") as say:
        before = {name: words for name, *words in levers[0].ask("facts")}
        _together((first, second))
        after = {name: words for name, *words in levers[0].ask("facts")}
        say("; ".join(f"{name} {' '.join(words)}" for name, words in after.items()), str(before))
    if shape[1] != 1024:
        return
    for mode, name in ((0, "WFI"), (1, "CTA"), (2, "CILP")):
        with row(table, f"switches, {what}, 1 ms: preemption mode {name}") as say:
            did = [one.do(f"mode {mode}") for one in levers]
            switch(say, 1000, f"; set: {did}")
    with row(table, f"switches, {what}, 1 ms: copy channels off") as say:
        did = [one.do("copies 1") for one in levers]
        switch(say, 1000, f"; set: {did}")
        for one in levers:
            one.do("copies 0")
    with row(table, f"switches, {what}, 1 ms: 8 more processes with contexts on the runlist") as say:
        for _ in range(8):
            pair.begin("work", "busy", 0.05, 32, 1)
        switch(say, 1000)


def test_the_arrival_of_work_seen_from_outside(pair: Pair, start: Starts, table: Table) -> None:
    """GP_PUT and GP_GET of the channels' USERD, mapped by another process; the trace of switches; what each costs."""
    service = pair.begin("work", "serve", 1.25, 20)
    levers = pair.levers(service)
    with row(table, "USERD of the compute channels, mapped from outside") as say:
        mapped = levers.ask("map")[0]
        say(f"{mapped[1]} channels; {_statuses(mapped)}")
    for every in (20, 100, 1000):
        with row(table, f"GP_PUT looked at each {every} us, 100 requests a second") as say:
            levers.program.tell("watch 2 " + str(every))
            time.sleep(0.1)
            service.tell("launches 100 1.5 1")
            said = levers.answer()
            launches = [int(line.split()[1]) for line in iter(service.line, "end")]
            words = {name: int(value) for name, value in said if name != "put"}
            puts = [int(value) for name, value in said if name == "put"]
            late = [min((put - launch for put in puts if put >= launch), default=-1) / 1000 for launch in launches]
            seen = [one for one in late if 0 <= one < 3 * every + 200]
            say(
                f"{len(seen)} of {len(launches)} launches seen, {_spread(seen)} us after them (p99 "
                f"{percentile(seen, 0.99) if seen else 0:.0f}); {words['changes']} changes, {words['busy']} of "
                f"{words['looks']} looks found GP_GET behind",
                f"a look takes {words['look_ns']} ns, so {words['look_ns'] / every / 10:.2f} % of a core",
            )
    with row(table, "the trace of switches beside it, 100 requests a second, looked at each 0.2 ms") as say:
        trace = start("switches", 2, "full")
        time.sleep(0.3)
        service.ask("open 100 1.5 1")
        said = trace.until("end")
        say(", ".join(f"{name} {value}" for name, value in said.items() if not name.startswith(("step_", "pid_"))))
    with row(table, "calls that say what a context did; ns, status, answer") as say:
        before = levers.ask("facts")
        service.ask("open 100 0.5 1")
        say("; ".join(" ".join(words) for words in levers.ask("facts")), "; ".join(" ".join(words) for words in before))


def _statuses(mapped: list[str]) -> str:
    own, shared, last = (int(one) for one in mapped[2:])
    return f"own objects {own:#x}, SHARE {shared >> 16:#x}, DUP_OBJECT {shared & 0xFFFF:#x}, MAP_MEMORY {last:#x}"


@pytest.mark.parametrize(("milliseconds", "kernels"), [(1.25, 20), (4.5, 60)])
def test_slices_of_the_neighbour(pair: Pair, table: Table, milliseconds: float, kernels: int) -> None:
    name = f"{milliseconds:g} ms requests, {LOAD:.0%}"
    load = Load(pair, milliseconds, kernels)
    with row(table, f"{name}: the driver's slices") as say:
        load.beside(say)
    load.levers.do(f"slice {OWN_US}")
    for microseconds in SLICES:
        with row(table, f"{name}: neighbour's slice {microseconds} us") as say:
            load.levers.do(f"slice {microseconds}")
            load.beside(say)
    load.levers.do("slice 200")
    with row(table, f"{name}: neighbour 200 us, service interleave HIGH") as say:
        did = load.levers.do("interleave 2")
        load.beside(lambda got, *more: say(f"{got}; interleave {did}", *more))
    load.levers.do(f"slice {OWN_US}")
    with row(table, f"{name}: neighbour {OWN_US} us, service interleave HIGH") as say:
        load.beside(say)
    with row(table, f"{name}: the same, runlist restarted with each GP_PUT") as say:
        mapped = load.levers.ask("map")[0]
        if int(mapped[1]) == 0:
            say(f"USERD is not mapped: {_statuses(mapped)}")
        else:
            load.beside(say, during=f"react {WINDOW} 20 0 0 1")
    load.levers.do("interleave 0")
    for idle in (2_000, 20_000):
        with row(table, f"{name}: 200 us from a new GP_PUT until {idle / 1000:g} ms later, else 8 ms") as say:
            load.beside(say, during=f"react {WINDOW} 20 {idle} 200 8000")
    other = pair.levers(load.service)  # acts on the service
    load.levers.do("slice 200")
    with row(table, f"{name}: neighbour 200 us, service 64 ms") as say:
        other.do("slice 64000")
        load.beside(say)
