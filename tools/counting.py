"""What a start takes, counted and not timed: instructions, system calls and page faults, of two versions in turns."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from tests.support import injection
from tests.support.bed import Bed
from tests.support.bundle import Container, write
from tests.support.isolation import in_namespaces
from tools.measuring import Failed

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
#: cachegrind without caches counts instructions and no more.
_VALGRIND = (
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=no",
    "--cachegrind-out-file=/dev/null",
    "--trace-children=yes",
)
_OPTIONS = ("--device=all", "--compute", "--utility", "--no-cgroups")
_ROUNDS = 5


def counted(bed: Bed, before: Path, after: Path) -> str:
    """A table. before, after: the directories of the commands. Raises Failed when a command does not end well."""
    rows: list[str] = in_namespaces(lambda: _rows(bed, before, after), timeout=600)
    head = "| what | before | after | ratio |\n|---|---|---|---|\n"
    return head + "".join(f"{row}\n" for row in rows)


def _rows(bed: Bed, before: Path, after: Path) -> list[str]:
    machines = {prefix: bed.directory("machine") / "h200" for prefix in (before, after)}
    for prefix, machine in machines.items():
        bed.call(str(prefix / "nvc-py"), "sim", "create", str(machine), "--machine", "h200", check=True)
    place = bed.directory("counted")

    def hook(prefix: Path, pid: int, tree: Path) -> tuple[list[str], str]:
        bundle = write(place / "bundle", Container(tree, ["/bin/true"], [f"V{i}={'x' * 40}" for i in range(20)]))
        state = {"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": pid, "bundle": str(bundle)}
        return [str(prefix / "nvc-hook"), "prestart"], json.dumps(state)

    def configure(prefix: Path, pid: int, tree: Path, *more: str) -> tuple[list[str], str]:
        program = [str(prefix / "nvc-py"), f"--sim={machines[prefix]}", "configure"]
        return [*program, *more, *_OPTIONS, f"--pid={pid}", str(tree)], ""

    def dry(prefix: Path, pid: int, tree: Path) -> tuple[list[str], str]:
        return configure(prefix, pid, tree, "--dry-run")

    commands = {"hook, container without a GPU": hook, "`configure --dry-run`": dry, "`configure`": configure}
    counters: dict[str, Callable[[Sequence[str], str], float]] = {
        "instructions, thousand": _instructions,
        "system calls": _calls,
        "page faults": _faults,
        "processor time, ms (of no use where the machine is busy)": _time,
    }
    rows = []
    for what, command in commands.items():
        for unit, count in counters.items():
            if command is configure and count is _instructions:
                continue  # valgrind lacks the calls that mount by descriptor
            found: dict[Path, list[float]] = {before: [], after: []}
            for number in range(_ROUNDS):
                for prefix in (before, after) if number % 2 else (after, before):
                    tree = injection.make_rootfs(place / f"r{len(rows)}.{number}.{prefix == after}")
                    with injection.container(tree) as pid:
                        found[prefix].append(count(*command(prefix, pid, tree)))
            old, new = (median(found[prefix]) for prefix in (before, after))
            rows.append(f"| {what}: {unit} | {old:.6g} | {new:.6g} | {new / old:.3f} |")
    return rows


def _run(command: Sequence[str], text: str) -> str:
    done = subprocess.run(command, input=text, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{command[0]}: exit status {done.returncode}: {done.stderr[-500:]}")
    return done.stderr


def _instructions(command: Sequence[str], text: str) -> float:
    found = re.findall(r"I\s+refs:\s+([\d,]+)", _run([*_VALGRIND, *command], text))
    return sum(int(number.replace(",", "")) for number in found) / 1000


def _calls(command: Sequence[str], text: str) -> float:
    said = _run(["strace", "-f", "-qq", *command], text)
    return len(re.findall(r"^(?:\[pid +\d+\] )?\w+\(", said, re.MULTILINE))


def _faults(command: Sequence[str], text: str) -> float:
    return _usage(command, text).ru_minflt


def _time(command: Sequence[str], text: str) -> float:
    used = _usage(command, text)
    return (used.ru_utime + used.ru_stime) * 1e3


def _usage(command: Sequence[str], text: str) -> resource.struct_rusage:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=_ENVIRONMENT)
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"{command[0]}: exit status {process.returncode}")
    return used
