"""The kept inventory's file: whatever is wrong with it, it is rebuilt and never believed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nvc.driver import inventory as module
from nvc.model import DriverOptions
from rpc.codec import dumps, loads
from tests.support.cached_machine import Machine


def damage_json(cache: Path) -> None:
    cache.write_bytes(cache.read_bytes()[:-40])


def damage_field(*path: str | int, value: object) -> Callable[[Path], None]:
    def change(cache: Path) -> None:
        content = loads(cache.read_bytes())
        place = content
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        cache.write_bytes(dumps(content))

    return change


def link(cache: Path) -> None:
    cache.rename(cache.with_suffix(".real"))
    cache.symlink_to(cache.with_suffix(".real"))


def second_name(cache: Path) -> None:
    os.link(cache, cache.with_suffix(".second"))


def fifo(cache: Path) -> None:
    cache.unlink()
    os.mkfifo(cache)


def too_big(cache: Path) -> None:
    with cache.open("ab") as file:
        file.truncate(module.SIZE_LIMIT + 1)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda cache: cache.write_bytes(b""), id="empty"),
        pytest.param(damage_json, id="cut-short"),
        pytest.param(lambda cache: cache.write_bytes(os.urandom(500)), id="random"),
        pytest.param(lambda cache: cache.write_bytes(b"[]"), id="a-list"),
        pytest.param(lambda cache: cache.write_bytes(b'{"machine":1}'), id="fields-missing"),
        pytest.param(damage_field("machine", value=5), id="machine-of-another-type"),
        pytest.param(damage_field("views", value=5), id="views-of-another-type"),
        pytest.param(damage_field("views", value=[5]), id="view-of-another-type"),
        pytest.param(damage_field("views", 0, "inventory", "gpus", value=[5]), id="gpu-of-another-type"),
        pytest.param(damage_field("views", 0, "inventory", "driver", "nvrm_version", value=5), id="version-a-number"),
        pytest.param(damage_field("views", 0, "watch", value=5), id="watch-of-another-type"),
        pytest.param(lambda cache: cache.chmod(0o666), id="writable-by-others"),
        pytest.param(lambda cache: cache.chmod(0o660), id="writable-by-the-group"),
        pytest.param(link, id="a-link"),
        pytest.param(second_name, id="a-second-name"),
        pytest.param(fifo, id="a-fifo"),
        pytest.param(too_big, id="too-big"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_rebuilt(machine: Machine, damage: Callable[[Path], None]) -> None:
    first = machine.load()

    damage(machine.cache)
    assert first == machine.load()
    assert 2 == machine.asked

    assert first == machine.load()
    assert 2 == machine.asked
    assert 0o100600 == machine.cache.lstat().st_mode


def test_damaged_facts_are_asked_for_again(machine: Machine) -> None:
    machine.load()
    damage_field("facts", value=[1])(machine.cache)
    machine.options = DriverOptions(no_mps=True)

    machine.load()

    assert 2 == machine.asked


@pytest.mark.root
def test_a_file_of_another_user_is_rebuilt(machine: Machine) -> None:
    machine.load()
    os.chown(machine.cache, 65534, 65534)

    machine.load()

    assert 2 == machine.asked
    assert 0 == machine.cache.stat().st_uid


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_may_write_is_not_used(machine: Machine, mode: int) -> None:
    machine.load()
    machine.cache.parent.chmod(mode)

    machine.load()
    machine.load()

    assert 3 == machine.asked


def test_a_directory_that_is_a_link_is_not_used(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    machine.cache.parent.parent.mkdir()
    machine.cache.parent.symlink_to(tmp_path / "elsewhere")

    machine.load()

    assert [] == list((tmp_path / "elsewhere").iterdir())


def test_a_cache_that_cannot_be_written_is_a_line_in_the_log(machine: Machine, log: Any) -> None:
    machine.log = log

    machine.load(Path("/proc/none/inventory.json"))

    assert log.has("inventory is not cached in /proc/none/inventory.json")


@pytest.mark.parametrize("room", [0, 10])
def test_a_full_disk_is_a_line_in_the_log(
    machine: Machine, log: Any, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: Sequence[int]) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return room

    machine.log = log
    monkeypatch.setattr(os, "write", full)

    machine.load()

    assert log.has("no space left on device")
    assert [] == list(machine.cache.parent.iterdir())
