"""Random sequences of hostile calls by real processes, behind the real filter, with a supervisor for each container.

The sequences are those of tests/native/test_sequences.py, played by ``guard_player``. After each one the tenants are
charged for at least what the simulated driver has handed out; after the end of their processes nothing is left.
``NVC_PLAYED_SEQUENCES`` and ``NVC_SEQUENCES_SEED`` set how many there are and which; a finding names its sequence.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support import manager
from tests.support.leftovers import wait_until
from tests.support.played import (
    RETAINING,
    SAMPLED,
    Counts,
    TwoTenants,
    play_unguarded,
    played,
    recorded,
    sequences,
)
from tests.support.simgpu import SimGpu, with_gpu
from tests.support.tenants import Tenants, guarded, prepare
from tests.system.test_guarded_smoke import environment, guarding

pytestmark = [pytest.mark.root, pytest.mark.system]

COUNT = int(os.environ.get("NVC_PLAYED_SEQUENCES", "200"))
SEED = int(os.environ.get("NVC_SEQUENCES_SEED", "1"))
LIMIT = 1 << 30
NEIGHBOUR = 1
#: Where a guard's own duplicate, or another guard's, is a holder.
OTHERS_HOLD = {
    "m3-confederate",
    "n17-heir-of-a-foreign-duplicate",
    "n26-import-from-another-tenant",
    "n34-duplicated-after-the-end",
    "n36-lost-foreign-piece",
}


class Play:
    """One sequence, with two tenants of its own. before, missed: bytes."""

    def __init__(self, tenants: Tenants, number: int, steps: str, before: int, missed: int) -> None:
        self.tenants, self.steps = tenants, steps
        self.before, self.missed = before, missed
        self.ids = (2 * number + 2, 2 * number + 3)
        self.folder = tenants.gpu.work / f"sequence{number}"
        self.folder.mkdir()
        self.control = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
        self.counts = Counts()

    def charged(self) -> int:
        return sum(self.tenants.of(one).memory for one in self.ids)

    def held(self) -> int:
        return manager.used(self.control) - self.before

    def is_covered(self) -> bool:
        """All that is handed out is charged, but for what can be missed."""
        return self.charged() + self.missed * len(self.ids) >= self.held()

    def run(self) -> None:
        """Raises AssertionError."""
        name = self.steps.splitlines()[0]
        for one in self.ids:
            self.tenants.add(one, memory=LIMIT)
        with played(
            self.folder, self.steps, lambda tenant, words: self.tenants.start(*words, tenant=self.ids[tenant])
        ) as self.counts:
            wait_until(self.is_covered, f"{name}: {self.held()} bytes are handed out, {self.charged()} charged")
        for one in self.ids:
            wait_until(partial(self.tenants.guard.gone, one), f"{name}: tenant {one} is gone")
            self.tenants.guard.remove(one)
        os.close(self.control)


def play_all(tenants: Tenants, count: int, without: str, missed: int) -> None:
    tenants.add(NEIGHBOUR, memory=LIMIT)
    neighbour = tenants.probe(tenant=NEIGHBOUR)
    assert neighbour.alloc(2) == [1, 0]
    assert neighbour.free() == 0
    control = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    before, counts, longest = manager.used(control), Counts(), 0.0
    for number, steps in enumerate(sequences(count, SEED, without)):
        one = Play(tenants, number, steps, before, missed)
        one.run()
        counts += one.counts
        begun = time.monotonic()
        assert neighbour.alloc(2) == [1, 0], steps.splitlines()[0]
        assert neighbour.free() == 0
        longest = max(longest, time.monotonic() - begun)
        wait_until(lambda: manager.used(control) == before, f"{steps.splitlines()[0]}: all is given back")
    os.close(control)
    print(f"sequences {COUNT}, {counts}, neighbour's longest {longest * 1000:.0f} ms")
    assert counts.calls > 20 * count
    assert counts.pieces > count
    assert counts.raced > count // 8
    assert longest < 10


@pytest.mark.timeout(100 + 2 * COUNT)
@pytest.mark.parametrize(("without", "missed"), [(RETAINING, 0), ("", SAMPLED)], ids=["all-charged", "sampled"])
def test_nothing_is_held_uncharged_behind_the_real_filter(tmp_path: Path, without: str, missed: int) -> None:
    play = partial(play_all, count=(COUNT + 1) // 2, without=without, missed=missed)
    guarded(prepare(tmp_path), play, seconds=60 + 2 * COUNT)


def test_tenants_that_stay_let_go_of_what_both_of_them_had(tmp_path: Path) -> None:
    """Two guards' duplicates of one piece: each was another holder for the other one, and the memory was lost."""

    def inside(gpu: SimGpu) -> None:
        places = map(gpu.work.joinpath, map("play{}".format, range(100)))
        control = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)

        def folder() -> Path:
            place = next(places)
            place.mkdir()
            return place

        with guarding(gpu) as guarded:
            tenants = [guarded.tenant(memory=LIMIT) for _ in range(2)]
            play = TwoTenants(folder, tenants, environment(gpu), lambda: manager.used(control), 0)
            chosen = [one for one in recorded("managed") if one.split()[1] in OTHERS_HOLD]
            assert play.play_all(chosen, seconds=100) == len(OTHERS_HOLD)
            assert play.wrong == []
            assert manager.used(control) == play.before
            assert play.counts.pieces >= len(chosen)
            assert play_unguarded(folder, chosen, play.environment, 0.0).pieces >= play.counts.pieces
            wait_until(lambda: manager.used(control) == play.before, "all is given back")
        os.close(control)

    with_gpu(prepare(tmp_path), inside)
