"""Containers on a simulated machine whose nodes are served: they reach a driver that answers."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.sim.description import load
from tests.support import leftovers
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.manager import build_rmcall
from tests.support.runtimes import OciRuntime
from tests.support.served import served_machine

pytestmark = pytest.mark.system

GIB = 1 << 30


@pytest.fixture
def machine(bed: Bed) -> Iterator[str]:
    """A machine of its own whose nodes are served until the test ends."""
    with served_machine(bed) as name:
        yield name


def tree_with_rmcall(bed: Bed) -> Path:
    tree = bed.rootfs()
    build_rmcall(tree / "usr/bin/rmcall")
    return tree


def answer(bed: Bed, runtime: OciRuntime, machine: str, stage: str) -> None:
    hooks = {stage: [bed.hook(stage, machine=machine)]}
    container = Container(tree_with_rmcall(bed), ["rmcall", str(5 * GIB + 1)], gpu_env("all"), hooks)
    description = load("h200")
    model = description.gpu_models[description.gpus[0].model]

    result = bed.run(runtime, container)

    assert (result.code, result.complaints) == (0, "")
    told = json.loads(result.out)
    assert told["status"] == 0
    assert told["bytes"] == 5 * GIB + (2 << 20)
    assert told["free"] == (model.memory - model.memory_reserved << 10) - (told["bytes"] >> 10)
    assert told["pids"] == [told["self"]] == [1]


def test_a_container_makes_the_drivers_calls(bed: Bed, runtime: OciRuntime, machine: str) -> None:
    answer(bed, runtime, machine, "prestart")


def test_what_a_container_had_is_free_for_the_next_one(bed: Bed, runc: OciRuntime, machine: str) -> None:
    answer(bed, runc, machine, "createContainer")
    answer(bed, runc, machine, "createContainer")


def test_a_container_without_a_gpu_has_no_node(bed: Bed, runc: OciRuntime, machine: str) -> None:
    hooks = {"prestart": [bed.hook("prestart", machine=machine)]}
    result = bed.run(runc, Container(tree_with_rmcall(bed), ["rmcall", "1"], gpu_env("void"), hooks))
    assert json.loads(result.out) == {"errno": 2}


def test_more_than_the_gpu_has_is_refused(bed: Bed, runc: OciRuntime, machine: str) -> None:
    hooks = {"prestart": [bed.hook("prestart", machine=machine)]}
    result = bed.run(runc, Container(tree_with_rmcall(bed), ["rmcall", str(200 * GIB)], gpu_env("0"), hooks))
    assert json.loads(result.out)["status"] == 0x51


def test_run_serves_around_a_command_and_leaves_nothing(bed: Bed) -> None:
    place = bed.machine(bed.new_machine("h200"))
    program = build_rmcall(bed.directory("bin") / "rmcall")
    script = f"mount --bind {place}/dev/nvidiactl /dev/null && test -f {place}/dev/nvidia0 && {program} 1; exit 3"

    result = bed.call(bed.commands.nvc, "sim", "run", str(place), "--", "sh", "-c", script)

    assert result.code == 3
    assert result.out.startswith("{"), result.text
    assert not (place / "dev/nvidia0").is_file()
    assert leftovers.everything(bed.token) == []


def test_a_killed_manager_is_replaced_by_the_next_start(bed: Bed) -> None:
    place = str(bed.machine(bed.new_machine("h200")))
    said = bed.call(bed.commands.nvc, "sim", "start", place, check=True)
    with open(os.pidfd_open(int(said.out.rpartition(" ")[2])), "rb") as manager:
        bed.call("kill", "-9", said.out.rpartition(" ")[2].strip(), check=True)
        assert select.select([manager], [], [], 30)[0], "it does not end"
    # Nothing waits for a driver that is gone: neither a path nor an open file of it.
    looked = bed.call("timeout", "-s", "KILL", "20", "stat", f"{place}/dev/nvidiactl")
    # A look that is on its way when the connection ends is told so in other words.
    ended = ("Transport endpoint is not connected", "Software caused connection abort")
    assert looked.code == 1, looked.text
    assert any(words in looked.err for words in ended), looked.text
    assert bed.call(bed.commands.nvc, "sim", "start", place).code == 0
    assert "served already" in bed.call(bed.commands.nvc, "sim", "start", place).err
    assert bed.call(bed.commands.nvc, "sim", "stop", place).code == 0
    assert leftovers.until(lambda: leftovers.everything(bed.token) == [], seconds=30)


def test_stop_ends_the_manager_although_its_files_are_held(bed: Bed) -> None:
    """An open node, and a mount namespace that was copied meanwhile, do not keep the driver alive."""
    place = str(bed.machine(bed.new_machine("h200")))
    bed.call(bed.commands.nvc, "sim", "start", place, check=True)
    script = f"exec 3<>{place}/dev/nvidiactl; unshare -m sh -c 'echo; read line'"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        bed.call(bed.commands.nvc, "sim", "stop", place, check=True)
        ended = leftovers.until(lambda: not leftovers.processes(bed.token), seconds=30)
        holder.stdin.close()
    assert ended
