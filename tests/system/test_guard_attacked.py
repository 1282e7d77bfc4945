"""What a guard does about attacks beside the table's (test_guard_attacks.py): parts of them, and their ends."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.attacking import GIB, LIMIT, Attack, attack
from tests.support.attacks import SOURCES
from tests.support.tenants import Tenants, build_static, guarded, prepare

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine, the tool that enters the filter, and the program with the attacks."""
    directory = prepare(tmp_path_factory.mktemp("machine"))
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def test_what_a_process_without_a_client_maps_counts(place: Path) -> None:
    """UVM may be shared by processes; the parent's GPU uses what its child maps."""

    def child_maps(one: Attack) -> None:
        one.begin("uvm-child")
        assert one.get("mapped") == 0
        one.seen()
        assert one.get("pieces") == 8, "of 10, less 1.5 GiB"
        one.go()

    attack(place, child_maps)


def test_a_tenant_whose_thread_does_not_come_back_can_be_removed(place: Path) -> None:
    def removed(tenants: Tenants) -> None:
        tenants.add(1, memory=LIMIT)
        tenants.add(2, memory=GIB)
        process = tenants.start(place / "attack", "stalled")
        assert process.stdout
        assert process.stdout.readline() == "page=1\n"
        begin = time.monotonic()
        tenants.guard.remove(1)
        assert time.monotonic() - begin < 50
        assert tenants.run(place / "attack", "churn", "10", tenant=2).startswith("bad=0\n")

    guarded(place, removed)


def test_only_what_changed_is_written(place: Path) -> None:
    """A struct that is read-only takes an answer all the same, in private memory (FOLL_FORCE of /proc/PID/mem)."""

    def constant(tenants: Tenants) -> None:
        tenants.add(1, memory=LIMIT)
        assert tenants.run(place / "attack", "unchanged") == "unchanged=0\nchanged=0\n"
        assert tenants.of(1).memory == 0

    guarded(place, constant)


def test_of_small_pieces_few_can_be_kept(place: Path) -> None:
    """Of pieces of 1 MiB one in 16 is looked at when it is freed, and all when one of them was kept."""

    def small(one: Attack) -> None:
        one.begin("uvm", 600, 1)
        for _ in range(7):
            assert one.main
            assert one.main.stdout
            one.main.stdout.readline()
        assert one.get("kept") == 600
        # 256 pieces in a row without a probe: once in fifteen million.
        assert one.memory() >= (600 - 256) * MIB
        assert one.memory() <= 600 * MIB

    attack(place, small)
