"""Programs behind a guard's filter that ask nothing of the GPU: the guard gets none of their calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.leftovers import wait_until
from tests.support.native import CHECKOUT
from tests.support.seen import Request
from tests.support.simgpu import SimGpu, with_gpu
from tests.support.tenants import Tenants, build_static, prepare

pytestmark = pytest.mark.root
GIB = 1 << 30
BYSTANDER = CHECKOUT / "tests/system/programs/bystander.c"
SHELL = "ls -l / >/dev/null; stty -a </dev/null 2>/dev/null; for i in 1 2 3; do (echo $i | cat); done; exit 0"
#: A shell, a compiler with its linker, and what NCCL does to sockets, interfaces and files.
COMMANDS = {
    "shell": ["sh", "-c", SHELL],
    "compiler": ["cc", "-O1", "-pthread", "-o", "{place}/compiled", str(BYSTANDER)],
    "sockets and files": ["{place}/bystander"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = prepare(tmp_path_factory.mktemp("machine"))
    build_static(BYSTANDER, directory / "bystander")
    return directory


def test_a_guard_is_told_of_the_drivers_requests_alone(place: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            tenants.add(1, memory=GIB)
            for what, command in COMMANDS.items():
                words = [word.format(place=place) for word in command]
                program = shutil.which(words[0])
                if program is None:
                    continue
                process = tenants.start(program, *words[1:], tenant=1)
                said, _ = process.communicate(timeout=60)
                assert process.returncode == 0, what
                assert what != "sockets and files" or int(said) > 20, "the kernel knows most of these requests"
                assert tenants.status(1).notifications == 0, what
            process = tenants.start(place / "bystander", "driver", tenant=1)
            process.communicate(timeout=60)
            assert process.returncode == 0
            assert tenants.status(1).notifications == 1, "of all these calls a client alone is announced"
            wait_until(lambda: tenants.of(1).memory == 0, "nothing is left")

    with_gpu(place, inside)


def test_the_tracer_for_gpu_machines_notes_each_kind_of_request(place: Path) -> None:
    """tests/gpu/enforce/programs/seen_calls.c, on the simulated driver: what the program makes, and no more."""
    tracer, out = place / "seen_calls", place / "seen"
    build_static(CHECKOUT / "tests/gpu/enforce/programs/seen_calls.c", tracer)

    def inside(gpu: SimGpu) -> None:
        subprocess.run([tracer, out, place / "bystander", "driver"], check=True, timeout=30)

    with_gpu(place, inside)
    traced = dict(Request.of(line) for line in out.read_text().splitlines())
    assert {(one.what, one.number, one.size) for one in traced} == {
        ("escape", 0xD2, 72),
        ("escape", 0x2B, 48),
        ("class", 0x41, 0),
        ("uvm", 0x30000001, 0),
        ("uvm", 39, 0),
    }
    assert {one.node for one in traced} == {"nvidiactl", "nvidia-uvm"}
