"""Pids in the driver's answers are those of the caller's pid namespace, and of the tenant's processes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.attacking import Attack, attack
from tests.support.attacks import SOURCES
from tests.support.tenants import build_static, prepare

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = prepare(tmp_path_factory.mktemp("machine"))
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def test_a_process_in_a_pid_namespace_sees_its_own_number(place: Path) -> None:
    """The neighbour holds 2 GiB meanwhile, and is not there."""

    def pids(one: Attack) -> None:
        one.begin("pids")
        assert one.get("pid") == 1
        assert one.get("memory") == 0
        assert one.get("list") == 0
        assert one.get("count") == 1
        assert one.get("first") == 1, "not the host's number"
        assert one.get("info") == 0
        told = [(one.get("same"), one.get("uses")) for _ in range(3)]
        assert told == [(1, 64), (1, 0), (1, 0)], "64 MiB of process 1; no process 2; nothing by the number outside"
        one.go()

    attack(place, pids)
