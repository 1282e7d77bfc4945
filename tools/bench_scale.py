"""``make bench-scale``: what an agent with hundreds of containers costs, against the goals of each line. Minutes.

Simulated: the driver, and for 2,000 tenants their supervisors too; everything else is what a node runs. Unmet goals are
printed as such.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.attacks import SOURCES
from tests.support.simgpu import SimGpu, make_machine, with_gpu
from tests.support.tenants import build_static
from tests.support.used import computed, memory, private
from tools import scale_caps, scale_simulated
from tools.bench import machine_facts
from tools.measuring import Failed
from tools.scale_real import GIB, OBSERVED, Node, calls, guards

#: Seconds of one part.
PART_S = 900
#: Seconds over which what is idle is measured.
IDLE_S = 20.0
#: Over which caps are measured while others end, and afterwards.
HELD_S = 10.0
#: Before it. Guards look at a tenant without calls the more rarely the longer it makes none: each 16 s in the end.
QUIET_S = 30.0
PLAIN = ("-m", "nvc")


@dataclass
class Line:
    """A line of the table. met: None where there is no goal."""

    what: str
    goal: str
    got: str
    met: bool | None = None

    def cells(self) -> list[str]:
        return [self.what, self.goal, self.got, {None: "", True: "yes", False: "**no**"}[self.met]]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench-scale", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tenants", type=int, default=500, help="with supervisors of their own (default 500)")
    parser.add_argument("--simulated", type=int, default=2000, help="without (default 2000)")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part")
    parser.add_argument("--write", metavar="FILE", help="also write the report to FILE, e.g. docs/measured/scale.md")
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("bench-scale: needs root, for namespaces and the guard", file=sys.stderr)
        return 1
    lines: list[Line] = []
    place = Path(tempfile.mkdtemp(prefix="nvc-scale."))
    try:
        for name, part in PARTS.items():
            if options.only not in (None, name):
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                lines += part(place, options.tenants if name != "simulated" else options.simulated)
            except (Failed, OSError, AssertionError, subprocess.SubprocessError) as error:
                # What was measured before, and what others take minutes to measure, is not lost by it.
                lines += _taken(place)
                lines.append(Line(name, "", f"failed: {str(error).strip().splitlines()[-1][:200]}", False))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    report = _report(lines, argv)
    print(report)
    if options.write:
        Path(options.write).write_text(report)
    return int(any(line.got.startswith("failed: ") for line in lines))


def _report(lines: Sequence[Line], argv: Sequence[str]) -> str:
    facts = {**dict(machine_facts()), "driver": "none: simulated machine h200", "processor": platform.machine()}
    load = " / ".join(f"{one:.1f}" for one in os.getloadavg())
    facts["load at the end"] = f"{load} (1, 5, 15 minutes)"
    words = " ".join(argv)
    facts["command"] = "`make bench-scale" + (f' BENCH_FLAGS="{words}"`' if words else "`")
    rows = [["what", "goal", "got", "met"], ["---"] * 4, *(line.cells() for line in lines)]
    head = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    return f"# Measured with many containers (SIMULATED)\n\n{head}\n{table}"


def _ms(seconds: Sequence[float]) -> str:
    low, high = min(seconds) * 1e3, max(seconds) * 1e3
    return f"{low:.1f} / **{statistics.median(seconds) * 1e3:.1f}** / {high:.1f} ms"


def _inside(place: Path, measure: Callable[[Node], list[Line]]) -> list[Line]:
    """Run in namespaces of its own; the lines come back by a file."""
    machine, result = place / "machine", place / "lines.json"
    if not machine.exists():
        make_machine(machine)
        build_static(SOURCES[0], machine / "attack", *map(str, SOURCES[1:]))

    def inside(gpu: SimGpu) -> None:
        with Node(gpu, machine / "attack") as node:
            result.write_text(json.dumps([asdict(line) for line in measure(node)]))

    with_gpu(machine, inside, seconds=PART_S)
    return _taken(place)


def _taken(place: Path) -> list[Line]:
    """What the part has measured, once."""
    result = place / "lines.json"
    lines = [Line(**one) for one in json.loads(result.read_text())] if result.exists() else []
    result.unlink(missing_ok=True)
    return lines


def _idle(place: Path, count: int) -> list[Line]:
    """Tenants that do nothing: time and memory of the agent and of all guard processes; then single changes."""

    def measure(node: Node) -> list[Line]:
        names = node.fill(count, memory=GIB)
        node.settle(count)
        node.agent.again(PLAIN)
        time.sleep(QUIET_S)
        agent, others = node.agent.process.pid, guards()
        begun, used = time.monotonic(), (computed([agent]), computed(others))
        time.sleep(IDLE_S)
        took = time.monotonic() - begun
        parts = [(computed(of) - before) / took for of, before in zip(([agent], others), used, strict=True)]
        resident = memory(agent)["Rss"] / 1e6
        own = sum(map(private, others)) / 1e6
        lines = [
            Line(f"{count} tenants, idle: agent's processor", "<= 2 %", f"{parts[0]:.1%}", parts[0] <= 0.02),
            Line("all guard processes' processor", "<= 1 %", f"{parts[1]:.1%}", parts[1] <= 0.01),
            Line("agent's resident memory", "<= 60 MB", f"{resident:.0f} MB", resident <= 60),
            Line(f"private memory of all {len(others)} guard processes", "<= 200 MB", f"{own:.0f} MB", own <= 200),
        ]
        before, begun = computed([agent]), time.monotonic()
        started = [node.start(memory=GIB) for _ in range(60)]
        idle = parts[0] * (time.monotonic() - begun)  # what it does all the time
        cost = max(0.0, computed([agent]) - before - idle) / len(started)
        lines.append(Line("admission: agent's processor, each", "<= 3 ms", f"{cost * 1e3:.1f} ms", cost <= 0.003))
        with node.client() as client:
            sets = [calls(client, "set", container=names[7], spec=f"mem={number + 1}Gi") for number in range(21)]
            caps = [calls(client, "set", container=names[8], spec=f"cap={number + 10}%") for number in range(21)]
            verbs = [calls(client, verb, container=names[9]) for _ in range(10) for verb in ("pause", "resume")]
        for what, found, goal in (
            ("`share set` of memory, by the agent", sets, 7),
            ("`share set` of a cap", caps, 7),
            ("`pause`, `resume`", verbs, 10),
        ):
            lines.append(Line(what, f"<= {goal} ms", _ms(found), statistics.median(found) * 1e3 <= goal))
        return lines

    return _inside(place, measure)


def _drain(place: Path, count: int) -> list[Line]:
    """All of them end at once, but ten with caps; one starts meanwhile. Then as many again, beside a fresh agent."""

    def measure(node: Node) -> list[Line]:
        stay = node.fill(10, channels=True, cap=100)
        names = _half_with_caps(node, count)
        node.settle(count + len(stay))
        alone, admitted = _started(node, 5)
        time.sleep(3)
        before, begun = node.tenants(), time.monotonic()
        node.end(names)
        meanwhile, admitted_meanwhile = _started(node, 3)
        gone = node.settle(len(stay) + 8)
        gone = time.monotonic() - begun
        late, has_processor, own = node.blocked(begun)
        time.sleep(max(0.0, HELD_S - gone))  # a cap's period may be a second, and its first and last are cut off
        after, took = node.tenants(), time.monotonic() - begun
        parts = [1 - (after[name].gpus[0].frozen_ns - before[name].gpus[0].frozen_ns) / 1e9 / took for name in stay]
        held = all(after[name].gpus[0].cap_in_force for name in stay)
        longer = max(admitted_meanwhile) - statistics.median(admitted)
        whole = max(meanwhile) - statistics.median(alone)
        lines = [
            Line(f"{count} end at once: time until all are gone", "", f"{gone:.1f} s"),
            Line("agent's event loop without a turn, at most", "<= 50 ms", f"{late * 1e3:.0f} ms", late <= 0.05),
            Line(
                "without what it waited for a processor",
                "<= 50 ms",
                f"{has_processor * 1e3:.0f} ms",
                has_processor <= 0.05,
            ),
            Line("computing itself", "<= 50 ms", f"{own * 1e3:.0f} ms", own <= 0.05),
            Line(
                f"ten caps of 10 % that stay, over {took:.1f} s",
                "in force, <= 11 %",
                f"{min(parts):.1%} to {max(parts):.1%}",
                held and max(parts) <= 0.11,
            ),
            Line(
                "a container that starts meanwhile waits longer to be admitted, at most",
                "<= 100 ms",
                f"{longer * 1e3:.0f} ms (alone {statistics.median(admitted) * 1e3:.0f} ms)",
                longer <= 0.1,
            ),
            Line(
                "the same until its first call is answered, by a driver that ends all others' clients",
                "",
                f"{whole * 1e3:.0f} ms (alone {statistics.median(alone) * 1e3:.0f} ms)",
            ),
        ]
        _half_with_caps(node, count)
        node.settle(count + len(stay) + 8)
        time.sleep(3)
        churned = private(node.agent.process.pid)
        node.agent.again(("-c", OBSERVED))
        time.sleep(3)
        node.tenants()
        ratio = churned / private(node.agent.process.pid)
        got = f"{ratio:.2f} ({churned / 1e6:.0f} MB)"
        return [*lines, Line("agent's private memory after that, of a fresh one's", "<= 1.2", got, ratio <= 1.2)]

    return _inside(place, measure)


def _half_with_caps(node: Node, count: int) -> list[str]:
    """So many caps as there are do not fit on a GPU."""
    return node.fill(count // 2, memory=GIB, cap=500) + node.fill(count - count // 2, memory=GIB)


def _started(node: Node, count: int) -> tuple[list[float], list[float]]:
    """Of containers that start: seconds until the first call is answered, and until the agent has admitted it."""
    answered, admitted = [], []
    for _ in range(count):
        begun = time.time()
        name, took = node.start(memory=GIB)
        answered.append(took)
        admitted.append(node.admitted(name) - begun)
    return answered, admitted


def _killed(place: Path, count: int) -> list[Line]:
    """SIGKILL to an agent with up to 200 tenants, ten of which allocate all the time."""
    count = min(count, 200)

    def measure(node: Node) -> list[Line]:
        node.fill(count - 10, memory=GIB, cap=500)
        begun = [node.begin("churn", "0", memory=GIB)[1] for _ in range(10)]
        node.settle(count)
        time.sleep(3)
        starts = [node.agent.again(PLAIN) for _ in range(5)]
        time.sleep(1)
        for program in begun:
            program.tell("")
        said = [dict(program.line().split("=") for _ in range(3)) for program in begun]
        bad, slowest = sum(int(one["bad"]) for one in said), max(int(one["slowest"]) for one in said) / 1e9
        node.settle(count - 10)
        return [
            Line(f"agent killed five times, {count} tenants: ready", "<= 1 s", _ms(starts), max(starts) <= 1),
            Line("calls answered wrongly meanwhile", "0", str(bad), bad == 0),
            Line("longest call of ten tenants that allocate", "", f"{slowest * 1e3:.0f} ms"),
        ]

    return _inside(place, measure)


def _caps(place: Path, count: int) -> list[Line]:
    """Caps of many tenants with supervisors, and what their plans say."""
    lines = []
    for number in (129, 300):
        lines += _inside(place, lambda node, number=number: [Line(*one) for one in scale_caps.measure(node, number)])
    return lines


def _simulated(place: Path, count: int) -> list[Line]:
    return [Line(*one) for one in scale_simulated.measure(place, count)]


PARTS: dict[str, Callable[[Path, int], list[Line]]] = {
    "simulated": _simulated,
    "idle": _idle,
    "drain": _drain,
    "killed": _killed,
    "caps": _caps,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
