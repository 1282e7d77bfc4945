"""Pageable system memory in video memory: the query and its result, with a simulated driver."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.bindings import uvm
from nvc.bindings.uvm import ATS, HMM, OFF
from nvc.driver import pageable
from nvc.linux.fd import Fd
from nvc.model import Host
from nvc.sim.description import PAGEABLE, load
from nvc.sim.machine_text import machine_text
from nvc.sim.proctree import texts
from tests.support.isolation import in_namespaces


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """What the question touches, with a plain file in place of the node: ENOTTY is what its kernel says."""
    place = tmp_path / "machine"
    wanted = ("/proc/devices", "/proc/driver/nvidia/params")
    for path, text in {**{path: texts(load("h200"))[path] for path in wanted}, "/dev/nvidia-uvm": ""}.items():
        (place / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (place / path[1:]).write_text(text)
    describe(place)
    return place


def describe(machine: Path, **changes: Any) -> None:
    """What a simulated driver answers by."""
    (machine / "description").write_text(machine_text(load("h200").replace(**changes), nodes=True))


def real(place: Path) -> Host:
    return Host(root=str(place), system=str(place))


def simulated(place: Path) -> Host:
    return real(place).replace(simulated="h200")


def refusal(host: Host) -> int:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=r"\w") as caught:
        pageable.ask(host)
    assert os.listdir("/proc/self/fd") == before
    return caught.value.errno or 0


def test_a_file_that_does_not_answer(machine: Path) -> None:
    assert refusal(simulated(machine)) == errno.ENOTTY


def test_on_a_real_machine_a_file_is_not_the_driver(machine: Path) -> None:
    assert refusal(real(machine)) == errno.ENXIO


def test_nobody_is_asked_without_the_module(machine: Path) -> None:
    devices = machine / "proc/devices"
    devices.write_text(re.sub(r".* nvidia-uvm\n", "", devices.read_text()))
    assert refusal(simulated(machine)) == errno.ENOENT
    assert refusal(real(machine)) == errno.ENOENT


def test_nobody_is_asked_without_the_node(machine: Path) -> None:
    (machine / "dev/nvidia-uvm").unlink()
    assert refusal(simulated(machine)) == errno.ENOENT


@pytest.mark.root
def test_another_drivers_device_is_not_opened(machine: Path) -> None:
    """As none that a simulated machine's node may happen to be; opening this one would give ENXIO or a descriptor."""
    node = machine / "dev/nvidia-uvm"
    node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    assert refusal(real(machine)) == errno.ENXIO
    assert refusal(simulated(machine)) == errno.ENOENT


def served(machine: Path, question: Callable[[Path], Any]) -> Any:
    """The answer to a question about the node of a simulated driver, which is a file."""
    from tests.support.manager import serve  # skips the importing test where FUSE is missing

    def work() -> Any:
        manager = serve(machine / "description", machine / "nodes")
        try:
            os.unlink(machine / "dev/nvidia-uvm")
            os.symlink("../nodes/nvidia-uvm", machine / "dev/nvidia-uvm")
            return question(machine / "dev/nvidia-uvm")
        finally:
            manager.terminate()
            manager.wait(20)

    return in_namespaces(work, timeout=40)


def asked(machine: Path) -> str:
    def question(node: Path) -> str:
        before = os.listdir("/proc/self/fd")
        found = pageable.ask(simulated(machine))
        assert os.listdir("/proc/self/fd") == before
        return found

    return str(served(machine, question))


@pytest.mark.root
@pytest.mark.parametrize("driver", ["535.104.05", "550.163.01", "580.142", "590.48.01", "595.45.04"])
@pytest.mark.parametrize("word", PAGEABLE)
def test_what_the_driver_answers(machine: Path, word: str, driver: str) -> None:
    describe(machine, pageable=word, driver_version=driver)
    assert asked(machine) == word


@pytest.mark.root
@pytest.mark.parametrize(("word", "expected"), [(HMM, HMM), (ATS, OFF)])
def test_video_memory_that_is_the_drivers_alone(machine: Path, word: str, expected: str) -> None:
    """The setting is for machines with ATS, which still answer that their GPUs reach ordinary memory."""
    describe(machine, pageable=word)
    with open(machine / "proc/driver/nvidia/params", "a") as params:
        params.write('CoherentGPUMemoryMode: "driver"\n')
    assert asked(machine) == expected


@pytest.mark.parametrize("mode", ["", "numa"])
@pytest.mark.root
def test_video_memory_that_is_a_node_of_the_host(machine: Path, mode: str) -> None:
    describe(machine, pageable=ATS)
    with open(machine / "proc/driver/nvidia/params", "a") as params:
        params.write(f'CoherentGPUMemoryMode: "{mode}"\n')
    assert asked(machine) == ATS


@pytest.mark.root
def test_a_driver_that_does_not_say_its_parameters_has_the_usual_ones(machine: Path) -> None:
    describe(machine, pageable=ATS)
    (machine / "proc/driver/nvidia/params").unlink()
    assert asked(machine) == ATS


@pytest.mark.root
def test_a_status_of_the_drivers_is_an_error(machine: Path) -> None:
    """0x40: of a file that is not initialised."""

    def question(node: Path) -> tuple[int, str]:
        with Fd(os.open(node, os.O_RDWR)) as file, pytest.raises(OSError, match=r"\w") as caught:
            uvm._call(file, uvm.PAGEABLE_MEM_ACCESS, uvm._PAGEABLE, False)
        return caught.value.errno or 0, str(caught.value)

    number, text = served(machine, question)
    assert number == errno.EIO
    assert "0x40" in text
