"""Memory that is handed on by a descriptor between guarded processes, behind the real filter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.attacks import SOURCES
from tests.support.guarded import GuardedTenant, Guarding
from tests.support.lending import MIB, NO_MEMORY, SIZE, between_tenants, lent, within_tenant
from tests.support.simgpu import SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import build_static
from tests.system.test_guarded_smoke import environment, guarding

pytestmark = [pytest.mark.root, pytest.mark.system]

PIECE, ROOM = SIZE // MIB, 64 * MIB
Start = Callable[..., Spoken]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def run(machine: Path, function: Callable[[Guarding, Start, Path], None]) -> None:
    def inside(gpu: SimGpu) -> None:
        def start(tenant: GuardedTenant, *words: str) -> Spoken:
            return Spoken(tenant.wrap([str(machine / "attack"), *words]), environment(gpu), seconds=30)

        with guarding(gpu) as guarded:
            function(guarded, start, gpu.work)

    with_gpu(machine, inside)


def test_an_import_from_another_tenant_is_charged_until_nothing_holds_it(machine: Path) -> None:
    def borrowed(guarded: Guarding, start: Start, place: Path) -> None:
        lender, borrower = guarded.tenant(memory=2 * SIZE), guarded.tenant(memory=SIZE + ROOM)
        charged = between_tenants(start, place, lender, borrower)
        expected = {"status": 0, "imported": PIECE, "freed": PIECE, "lender ended": PIECE, "end": 0}
        assert charged == expected, "UVM has it until the borrower's process ends"

    run(machine, borrowed)


def test_an_import_beyond_the_quota_is_refused_and_given_back(machine: Path) -> None:
    def refused(guarded: Guarding, start: Start, place: Path) -> None:
        lender, borrower = guarded.tenant(memory=2 * SIZE), guarded.tenant(memory=SIZE // 2)
        one, other, status = lent(start, place, lender, borrower)
        assert status == NO_MEMORY
        assert borrower.used() < ROOM
        assert borrower.refused()["over-quota"] == 1
        other.kill()
        one.kill()
        assert lender.empty()

    run(machine, refused)


def test_an_import_within_a_tenant_is_charged_once(machine: Path) -> None:
    def own(guarded: Guarding, start: Start, place: Path) -> None:
        charged = within_tenant(start, place, guarded.tenant(memory=SIZE + ROOM))
        assert charged == {"status": 0, "imported": PIECE, "exporter freed": PIECE, "end": 0}

    run(machine, own)
