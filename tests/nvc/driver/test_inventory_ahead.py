"""The kept inventory read ahead: the same as when it is read for the request, and never older."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvc.driver import inventory as module
from nvc.driver.inventory import read_ahead
from rpc.codec import dumps, loads
from tests.nvc.driver.test_inventory import MACHINE_CHANGES, VIEW_CHANGES
from tests.support.cached_machine import Machine
from tests.support.driver_root import H200


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_known", {})


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How long each text was that was decoded."""
    lengths: list[int] = []

    def counted(data: bytes, *, limit: int) -> Any:
        lengths.append(len(data))
        return loads(data, limit=limit)

    monkeypatch.setattr(module, "loads", counted)
    yield lengths


def test_it_is_decoded_once(machine: Machine, decoded: list[int]) -> None:
    machine.gpus = (H200.replace(migs=(machine.root.mig_instance(0, 1, 0),)),)
    first = machine.load()
    for _ in range(3):
        read_ahead(str(machine.cache))

    assert [first] * 3 == [machine.load() for _ in range(3)]
    assert len(decoded) == 1
    assert machine.asked == 1


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        *(pytest.param(*one.values, 2, id=f"machine-{one.id}") for one in MACHINE_CHANGES),
        *(pytest.param(*one.values, 1, id=f"view-{one.id}") for one in VIEW_CHANGES),
    ],
)
def test_a_change_counts_as_without_it(machine: Machine, change: Callable[[Machine], None], asked: int) -> None:
    """Of the machine: NVML is asked again. Of the view: files are looked for again."""
    machine.gpus = (H200.replace(migs=(machine.root.mig_instance(0, 1, 0),)),)
    machine.load()
    read_ahead(str(machine.cache))
    change(machine)

    found = machine.load()

    assert machine.asked == asked
    machine.cache.unlink()
    assert found == machine.load()


def test_what_was_written_since_is_read(machine: Machine, decoded: list[int]) -> None:
    machine.load()
    read_ahead(str(machine.cache))
    (machine.root.path / "usr/bin/nvidia-smi").unlink()
    second = machine.load()
    decoded.clear()

    assert machine.load() == second
    assert len(decoded) == 1
    read_ahead(str(machine.cache))
    assert machine.load() == second
    assert len(decoded) == 2


def others_may_write(machine: Machine) -> None:
    machine.cache.chmod(0o666)


def second_name(machine: Machine) -> None:
    os.link(machine.cache, f"{machine.cache}.other")


def link(machine: Machine) -> None:
    machine.cache.rename(f"{machine.cache}.other")
    machine.cache.symlink_to(f"{machine.cache}.other")


@pytest.mark.parametrize("change", [others_may_write, second_name, link])
def test_a_file_that_would_not_be_read_is_not_used(machine: Machine, change: Callable[[Machine], None]) -> None:
    machine.load()
    read_ahead(str(machine.cache))
    change(machine)

    machine.load()

    assert machine.asked == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"views": [{}]}'])
def test_a_damaged_file_is_left_to_the_request(machine: Machine, damage: bytes) -> None:
    first = machine.load()
    read_ahead(str(machine.cache))
    machine.cache.write_bytes(damage)
    read_ahead(str(machine.cache))

    assert module._known == {}
    assert machine.load() == first
    assert machine.asked == 2


def test_a_view_of_another_shape_is_left_to_the_request(machine: Machine) -> None:
    first = machine.load()
    stored = loads(machine.cache.read_bytes(), limit=1 << 20)
    del stored["views"][0]["inventory"]["driver"]
    machine.cache.write_bytes(dumps(stored))
    read_ahead(str(machine.cache))

    assert module._known == {}
    assert machine.load() == first


def test_no_file_is_no_mistake(machine: Machine) -> None:
    read_ahead(str(machine.cache))

    assert module._known == {}
