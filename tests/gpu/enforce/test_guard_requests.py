"""Which requests of the driver programs make, and what a guard would make of them, on a real GPU.

Each program that is there runs once, without a guard, behind seen_calls.c. For each: how many kinds of request it
makes, and those that a guard refuses. At the end, what native/test/rm_seen.h does not have. Nothing is asserted of what
is refused: that is to be looked at. The whole ends within six minutes; build/gpu-share/requests.md and
requests-seen.txt have all of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import PARTS, PROGRAMS
from tests.support import gpuhost
from tests.support.bed import Bed
from tests.support.frameworks import Frameworks
from tests.support.guarded import Guarding
from tests.support.seen import NO_REQUESTS, Request, is_refused, rows_for_header, verdict
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]

#: Seconds: of all programs together, and of one.
WHOLE, ONE = 330.0, 60.0
MISSING = 77
TOOLS = f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin:/opt/nvidia/nsight-compute:/opt/nvidia/nsight-systems/bin"
#: By seen_programs.py.
SCRIPTS = ("torch", "ipc", "nvml", "nvdec", "opencl", "vulkan", "egl", "checkpoint")
#: The server ends with its daemon; the GPU's compute mode stays as it is.
MPS = (
    "export CUDA_MPS_PIPE_DIRECTORY=$0/pipe CUDA_MPS_LOG_DIRECTORY=$0/log; mkdir -p $0/pipe $0/log;"
    " nvidia-cuda-mps-control -d && $1; echo quit -t 5 | nvidia-cuda-mps-control"
)
SMI = {
    "nvidia-smi": "",
    "nvidia-smi -q": "-q",
    "nvidia-smi -L": "-L",
    "nvidia-smi dmon": "dmon -c 1",
    "nvidia-smi pmon": "pmon -c 1",
    "nvidia-smi topo -m": "topo -m",
    "nvidia-smi nvlink -s": "nvlink -s",
    "nvidia-smi query": "--query-gpu=name,utilization.gpu,memory.used,power.draw,clocks.sm --format=csv",
    "nvidia-smi query-compute-apps": "--query-compute-apps=pid,name,used_memory --format=csv",
}


@dataclass
class Trace:
    """status: the program's, None where it was ended."""

    status: int | None
    requests: dict[Request, int] = field(default_factory=dict)


def commands(place: Path, program: Path | None) -> dict[str, list[str]]:
    """Name -> command of all that this machine has."""
    interpreter, script = Frameworks.find().interpreter or sys.executable, str(PROGRAMS / "seen_programs.py")
    found = {name: ["nvidia-smi", *words.split()] for name, words in SMI.items()}
    found |= {name: [interpreter, script, name] for name in SCRIPTS}
    if program is None:
        return found
    add = str(program)
    found |= {
        "a CUDA program": [add],
        "a client of MPS": ["sh", "-c", MPS, str(place), add],
        "compute-sanitizer": ["compute-sanitizer", add],
        "compute-sanitizer racecheck": ["compute-sanitizer", "--tool", "racecheck", add],
        "cuda-gdb": ["cuda-gdb", "-batch", "-ex", "break main", "-ex", "run", "-ex", "continue", add],
        "ncu": ["ncu", "--section", "SpeedOfLight", add],
        "nsys": ["nsys", "profile", "-o", str(place / "report"), add],
    }
    needed = {"a client of MPS": "nvidia-cuda-mps-control"}
    return {name: words for name, words in found.items() if shutil.which(needed.get(name, words[0]), path=TOOLS)}


def traced(tracer: Path, out: Path, command: list[str], environment: Mapping[str, str], seconds: float) -> Trace:
    with subprocess.Popen(
        [str(tracer), str(out), *command],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        said, status = b"", None
        try:
            said = process.communicate(timeout=seconds)[1]
            status = process.returncode
        except subprocess.TimeoutExpired:
            process.terminate()  # what was seen is written
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            process.kill()
        if status not in (0, MISSING):
            print(f"{command}: {status}: {said.decode(errors='replace')[-400:]}")
    lines = out.read_text().splitlines() if out.exists() else []
    return Trace(status, dict(Request.of(line) for line in lines))


@pytest.mark.parametrize("name", ["nvdec", "opencl", "vulkan", "egl"])
def test_a_program_does_under_a_guard_what_it_does_without(
    guarding: Guarding, environment: dict[str, str], table: Table, name: str
) -> None:
    """Video and graphics compute in their device's own address space, where CUDA names one (native/rm/space.c)."""
    command = [Frameworks.find().interpreter or sys.executable, str(PROGRAMS / "seen_programs.py"), name]
    tenant, said = guarding.tenant(memory=8 << 30, graphics=True), list[tuple[int, str]]()
    for words in (command, tenant.wrap(command)):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=ONE, check=False)
        if done.returncode == MISSING:
            pytest.skip(f"no library for {name} on this machine")
        said.append((done.returncode, done.stderr))
    good = said[0] == said[1]
    refused = ", ".join(f"{reason} {count}" for reason, count in sorted(tenant.refused().items())) or "nothing"
    table.add(
        f"{name}, every step of it, under a guard",
        goal="as without",
        got=f"{'the same' if good else said[1]}; refused: {refused}",
        base=said[0][1].strip() or "nothing failed",
        good=good,
    )
    assert good, said


@pytest.mark.timeout(400)
def test_what_programs_ask_of_the_driver(bed: Bed, environment: dict[str, str], table: Table) -> None:
    place = bed.directory("traces")
    tracer = place / "seen_calls"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    subprocess.run([compiler, "-std=gnu11", "-O1", "-o", tracer, PROGRAMS / "seen_calls.c"], check=True)
    end, every, text = time.monotonic() + WHOLE, set[Request](), []
    environment = {**environment, "PATH": TOOLS}
    for number, (name, command) in enumerate(commands(place, gpuhost.compile_program(place)).items()):
        left = end - time.monotonic()
        if left < 5:
            table.add(name, got="not tried: no time was left")
            continue
        trace = traced(tracer, place / f"out{number}", command, environment, min(ONE, left))
        if trace.status == MISSING:
            continue
        refused = sorted(one for one in trace.requests if is_refused(one))
        every |= trace.requests.keys()
        table.add(
            name,
            got=f"{len(trace.requests)} kinds, {sum(trace.requests.values())} calls; "
            f"{'ended after its time' if trace.status is None else f'status {trace.status}'}",
            base="refused: " + (", ".join(map(str, refused)) or "none"),
        )
        text += [
            f"# {name}",
            *(f"{one}: {count} times, {verdict(one)}" for one, count in sorted(trace.requests.items())),
        ]
    new = rows_for_header(every)
    table.add("never seen before", got=f"{len(new)}: {'; '.join(new)}")
    others = sorted({str(one) for one in every if one.what in NO_REQUESTS})
    table.add("the old heap's functions, other nodes, policies of sharing", got="; ".join(others) or "none")
    PARTS.directory.mkdir(parents=True, exist_ok=True)
    (PARTS.directory / "requests-seen.txt").write_text("\n".join([*text, "# never seen before", *new, ""]))
    assert any(one.what == "class" for one in every), "nothing was traced"
