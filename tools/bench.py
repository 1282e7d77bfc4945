"""``make bench``: what starting a container costs, as ratios of one run on this machine; and what calls cost then.

Absolute times mean little across machines, so each row compares with something measured in the same minute: a bare
interpreter, or ``nvidia-smi -L`` where there is a GPU. Without a GPU a simulated machine stands in and the
table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import cgroupview, launchers
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.paused import Paused
from tests.support.runtimes import OciRuntime, find
from tests.support.warm import WarmBed
from tools import bench_calls
from tools.measuring import Failed, Row, interleave, markdown, peak_mib, spawn

DRIVER = Path("/proc/driver/nvidia/version")
#: docs/internals/design.md, "Goals". `nvidia-smi -L` stands in for nvidia-container-cli.
GOAL_HOOK, GOAL_CONFIGURE, GOAL_COLD, GOAL_AGENT, GOAL_MANY, LIMIT_MIB = 1.5, 1.45, 2.0, 0.7, 1.0, 48
#: `nvc-runtime create` of a container without a GPU, until the real runtime runs.
GOAL_RUNTIME = 1.25
#: `configure` through the agent against NVIDIA's own program, where that is installed.
REFERENCE, GOAL_REFERENCE = "nvidia-container-cli", 0.5
MANY = 64


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each row (default 15)")
    parser.add_argument("--many-rounds", type=int, default=3, help=f"rounds of {MANY} containers at once (default 3)")
    parser.add_argument(
        "--only",
        choices=["agent", "calls", "cold", "none"],
        help="these rows alone: agent is `configure` by the pre-fork server, calls those of tools/bench_calls.py, cold "
        "`configure` and `list` with an inventory and without, none a container without a GPU",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--write", metavar="FILE", help="also write the report to FILE, e.g. docs/measured/NAME.md")
    options = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("bench: needs root, to start containers", file=sys.stderr)
        return 1
    bed = Bed()
    try:
        bench = Bench(bed, options.rounds, options.many_rounds)
        chosen = {
            "agent": bench.agent_rows,
            "calls": bench.call_rows,
            "cold": bench.cold_rows,
            "none": bench.none_rows,
        }
        rows = chosen.get(options.only, bench.rows)()
    except (Failed, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        left = bed.close()
    report = _report(rows, argv)
    print(json.dumps(_data(rows), indent=2) if options.json else report)
    if options.write:
        Path(options.write).write_text(report)
    return int(bool(left))


class Bench:
    """The measurements, on one bed."""

    def __init__(self, bed: Bed, rounds: int, many_rounds: int) -> None:
        self.bed, self.rounds, self.many_rounds = bed, rounds, many_rounds
        self.real = DRIVER.exists()
        self.global_options = [] if self.real else [f"--sim={bed.machine('h200')}"]
        self.runtime = self._runtime()
        self.bare = [launchers.interpreter(), "-I", "-S", "-c", "pass"]
        self.smi = ["nvidia-smi", "-L"] if self.real else self.bare
        self.bare_name = "bare `python3 -I -S -c pass`"
        self.smi_name = "`nvidia-smi -L`" if self.real else f"{self.bare_name} (no GPU here)"

    def rows(self) -> list[Row]:
        self._warm_up()
        started = [
            *self.none_rows(),
            *self._configure(),
            self._inventory("cold"),
            self._inventory("warm"),
            self._many(),
        ]
        return [*started, *self.call_rows()]

    def cold_rows(self) -> list[Row]:
        """With an inventory and without."""
        self._warm_up()
        return [row for kind in ("warm", "cold") for row in (self._configure_by(kind), self._inventory(kind))]

    def none_rows(self) -> list[Row]:
        """A container that asks for no GPU."""
        return [self._hook(), self._create(), *self._refused()]

    def call_rows(self) -> list[Row]:
        """What is not the start of a container."""
        return bench_calls.rows(self.bed, self.runtime, self.rounds)

    def agent_rows(self) -> list[Row]:
        """`configure` by the pre-fork server, and what starting any process costs in the same minute."""
        self._warm_up()
        row = Row(self.bare_name, "`true`")
        interleave(row, self.rounds, lambda _: spawn(self.bare) * 1e3, lambda _: spawn(["true"]) * 1e3)
        return [*self._through_agent(), row]

    def _runtime(self) -> OciRuntime:
        for name in ("crun", "runc"):
            for view in cgroupview.available():
                if find(name) and not (name == "crun" and view.name == "hybrid"):
                    return self.bed.runtime(name, view.name)
        raise RuntimeError("neither runc nor crun is installed")

    def _warm_up(self) -> None:
        """Byte-compile, fill the page cache and the inventory cache."""
        for _ in range(2):
            spawn([self.bed.commands.nvc, *self.global_options, "list"])
            spawn(self.smi)

    def _hook(self) -> Row:
        """A container without a GPU: the cost for every container."""
        directory = self.bed.bundle(Container(self.bed.base, ["/bin/true"], [f"V{i}={'x' * 40}" for i in range(20)]))
        state = self.bed.directory("state") / "state.json"
        data = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": os.getpid(), "bundle": str(directory)}
        state.write_text(json.dumps(data))
        command = [self.bed.commands.hook, "prestart"]
        row = Row("hook, container without a GPU", self.bare_name, goal=GOAL_HOOK)
        return interleave(
            row,
            self.rounds * 3,  # short, so more of them
            lambda _: spawn(command, stdin=str(state)) * 1e3,
            lambda _: spawn(self.bare) * 1e3,
        )

    def _create(self) -> Row:
        """nvc-runtime, with true(1) in the place of the real runtime, whose own time is in both."""
        row = Row("`nvc-runtime create`, container without a GPU", self.bare_name, goal=GOAL_RUNTIME)
        create = self._of_runtime("", *self._create_words())
        return interleave(row, self.rounds * 3, create, lambda _: spawn(self.bare) * 1e3)

    def _refused(self) -> list[Row]:
        """The same where containers may be guarded: it gets the filter that refuses NVIDIA's drivers; and ``exec``."""
        words = self._create_words()
        state = self.bed.directory("state")
        (state / "c").mkdir()
        (state / "c/state.json").write_text(json.dumps({"config": {"labels": [f"bundle={words[2]}"]}}))
        rows = []
        for name, of in (("create", words), ("exec", ["--root", str(state), "exec", "c", "true"])):
            refused, usual = self._of_runtime("require", *of), self._of_runtime("off", *of)
            for baseline, function in (("the same without", usual), (self.bare_name, lambda _: spawn(self.bare) * 1e3)):
                row = Row(f"`nvc-runtime {name}`, container without a GPU, filter", baseline)
                rows.append(interleave(row, self.rounds * 3, refused, function))
        return rows

    def _create_words(self) -> list[str]:
        directory = self.bed.bundle(Container(self.bed.base, ["/bin/true"], [f"V{i}={'x' * 40}" for i in range(20)]))
        return ["create", "--bundle", str(directory), "c"]

    def _of_runtime(self, guard: str, *words: str) -> Callable[[int], float]:
        """Milliseconds of an nvc-runtime. guard: the node's rule, "" for the machine's own config.toml."""
        directory = self.bed.directory("runtime")
        (directory / "runc").symlink_to(shutil.which("true") or "/bin/true")
        environment = {"PATH": str(directory)}
        if guard:
            (directory / "nvc").mkdir()
            (directory / "nvc/config.toml").write_text(f'[share]\nguard = "{guard}"\n')
            environment["XDG_CONFIG_HOME"] = str(directory)
        return lambda _: spawn([self.bed.commands.runtime, *words], environment=environment) * 1e3

    def _configure(self) -> list[Row]:
        """Time of configure on fresh containers, and peak memory."""
        timed = [self._configure_by("warm"), self._configure_by("cold")]
        return [*timed, *self._through_agent(), self._memory("warm"), self._memory("cold", "--no-cache")]

    def _configure_by(self, temperature: str) -> Row:
        options = ["--no-cache"] if temperature == "cold" else []
        goal = GOAL_COLD if temperature == "cold" else GOAL_CONFIGURE
        containers = self._hold(self.rounds)
        row = interleave(
            Row(f"`configure`, inventory {temperature}", self.smi_name, goal=goal if self.real else None),
            self.rounds,
            lambda index: spawn(self._command(containers[index], *options)) * 1e3,
            lambda _: spawn(self.smi) * 1e3,
        )
        self._end(containers)
        return row

    def _through_agent(self) -> list[Row]:
        """By the pre-fork server: against the yardstick, and against the Python program of the same installation."""
        # With a variable of the loader the command does its work itself, without the agent.
        plain = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
        with WarmBed(self.bed.directory("warm")) as warm:
            warm.start()
            rows, served = [], warm.served()
            against = [
                (self.smi_name, None, GOAL_AGENT if self.real else None),
                ("the same without it", warm.python("nvc-py"), None),
            ]
            reference = shutil.which(REFERENCE)
            if reference and self.real:
                against.append((f"`{REFERENCE} configure`", reference, GOAL_REFERENCE))
            for name, other, goal in against:
                containers, others = self._hold(self.rounds), self._hold(self.rounds if other else 0)
                row = Row("`configure` through the agent", name, goal=goal)

                def yardstick(index: int, other: str | None = other, others: list[Paused] = others) -> float:
                    if other is None:
                        return spawn(self.smi) * 1e3
                    return spawn([other, *self._command(others[index])[1:]], environment=plain) * 1e3

                def through(index: int, containers: list[Paused] = containers) -> float:
                    command = [warm.commands.nvc, *self._command(containers[index])[1:]]
                    return spawn(command, environment=plain) * 1e3

                rows.append(interleave(row, self.rounds, through, yardstick))
                self._end([*containers, *others])
            if warm.served() == served:
                raise Failed("the agent served none of them")
            return rows

    def _memory(self, temperature: str, *options: str) -> Row:
        """Peak memory of the largest process of configure; cold, the one that asks NVML is among them."""
        row = Row(f"peak memory of `configure`, inventory {temperature}", f"{LIMIT_MIB} MiB", unit="MiB", goal=1.0)
        containers = self._hold(self.rounds)
        for held in containers:
            row.pairs.append((peak_mib(launchers.interpreter(), self._command(held, *options)), LIMIT_MIB))
        self._end(containers)
        return row

    def _inventory(self, temperature: str) -> Row:
        options = ["--no-cache"] if temperature == "cold" else []
        command = [self.bed.commands.nvc, *self.global_options, *options, "list"]
        row = Row(f"`list`, inventory {temperature}", self.smi_name)
        return interleave(row, self.rounds, lambda _: spawn(command) * 1e3, lambda _: spawn(self.smi) * 1e3)

    def _many(self) -> Row:
        """64 at once on all cores, against 64 times one alone."""
        row = Row(f"`configure`, {MANY} containers at once", f"{MANY} x one", goal=GOAL_MANY)

        def at_once(_: int) -> float:
            containers = self._hold(MANY)
            commands = [self._command(container) for container in containers]
            with ThreadPoolExecutor(MANY) as pool:
                start = time.perf_counter()
                list(pool.map(spawn, commands))
                seconds = time.perf_counter() - start
            self._end(containers)
            return seconds * 1e3

        def alone(_: int) -> float:
            containers = self._hold(5)
            seconds = [spawn(self._command(container)) for container in containers]
            self._end(containers)
            return sorted(seconds)[2] * 1e3 * MANY

        return interleave(row, self.many_rounds, at_once, alone)

    def _hold(self, count: int) -> list[Paused]:
        """Containers at the point where their hooks run."""

        def one(_: int) -> Paused:
            return Paused(self.bed, self.runtime, Container(self.bed.rootfs(), ["/bin/true"]))

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(one, range(count)))

    def _end(self, containers: Sequence[Paused]) -> None:
        """Let them run to their end, and make sure that they did."""
        with ThreadPoolExecutor(8) as pool:
            for result in pool.map(Paused.release, containers):
                if result.code != 0:
                    raise RuntimeError(f"{self.runtime.name} run: {result.text}")

    def _command(self, held: Paused, *options: str) -> list[str]:
        words = ["configure", "--device=0", "--compute", "--utility", "--video", f"--pid={held.pid}", str(held.tree)]
        return [self.bed.commands.nvc, *self.global_options, *options, *words]


def _data(rows: Sequence[Row]) -> dict[str, object]:
    return {**dict(machine_facts()), "rows": [row.as_data() for row in rows]}


def machine_facts() -> list[tuple[str, str]]:
    """What a report begins with: (name, value)."""
    system = os.uname()
    driver = DRIVER.read_text().splitlines()[0] if DRIVER.exists() else "none: simulated machine h200"
    return [
        ("date", time.strftime("%Y-%m-%d", time.gmtime())),
        ("driver", driver),
        ("kernel", f"{system.release} {system.machine}"),
        ("cpus", str(os.cpu_count())),
        ("python", platform.python_version()),
    ]


def _report(rows: Sequence[Row], argv: Sequence[str]) -> str:
    facts = "".join(f"- {name}: {value}\n" for name, value in machine_facts())
    words = " ".join(word for word in argv)
    command = "make bench" + (f' BENCH_FLAGS="{words}"' if words else "")
    title = "a GPU machine" if DRIVER.exists() else "a machine without a GPU (SIMULATED)"
    return f"# Measured on {title}\n\n{facts}- command: `{command}`\n\n{markdown(rows)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
