"""Random sequences of hostile calls by real processes, behind the real filter, with a supervisor for each container.

The sequences are those of tests/native/test_sequences.py, played by ``guard_player``. After each one the tenants are
charged for at least what the simulated driver has handed out; after the end of their processes nothing is left.
``NVC_PLAYED_SEQUENCES`` and ``NVC_SEQUENCES_SEED`` set how many there are and which; a finding names its sequence.
"""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support import manager
from tests.support.native import build
from tests.support.tenants import SECONDS, Tenants, guarded, prepare, until

pytestmark = [pytest.mark.root, pytest.mark.system]

COUNT = int(os.environ.get("NVC_PLAYED_SEQUENCES", "200"))
SEED = int(os.environ.get("NVC_SEQUENCES_SEED", "1"))
MIB = 1 << 20
LIMIT = 1 << 30
#: Half of the sequences have no steps by which UVM retains pieces: then all is charged. With them, pieces below 32 MiB
#: are found by sampling (docs/internals/guard.md): of each tenant so many bytes can be missed.
RETAINING = "map,batch"
SAMPLED = 224 * MIB
#: Each sequence begins with these: tenant 0 has the first and the last, tenant 1 the other one.
TASKS = {0: 0, 1: 1, 3: 0}
NEIGHBOUR = 1


def sequences(count: int, without: str) -> list[str]:
    """Steps, by ``guard_sequences print``; each begins with its name. without: kinds of steps, with commas."""
    command = [str(build("guard_sequences") / "guard_sequences"), "print", str(count), str(SEED), "", without]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    return [one + "\n" for one in out.split("\n\n") if one.strip()]


class Play:
    """One sequence, with two tenants of its own. before, missed: bytes."""

    def __init__(self, tenants: Tenants, number: int, steps: str, before: int, missed: int) -> None:
        self.tenants, self.steps = tenants, steps
        self.before, self.missed = before, missed
        self.ids = (2 * number + 2, 2 * number + 3)
        self.folder = tenants.gpu.work / f"sequence{number}"
        self.folder.mkdir()
        self.control = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
        self.calls = self.races = self.pieces = 0

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
        player = build("guard_player") / "guard_player"
        for one in self.ids:
            self.tenants.add(one, memory=LIMIT)
        with subprocess.Popen(
            [player, "play", self.folder],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as coordinator:
            assert coordinator.stdin and coordinator.stdout and coordinator.stderr
            for number, tenant in TASKS.items():
                self.tenants.start(player, "task", str(number), self.folder, tenant=self.ids[tenant])
            coordinator.stdin.write(self.steps + "\n")
            coordinator.stdin.flush()
            counts = coordinator.stdout.readline().split()
            assert len(counts) == 3, (name, coordinator.stderr.read())
            self.calls, self.races, self.pieces = map(int, counts)
            until(self.is_covered, f"{name}: {self.held()} bytes are handed out, {self.charged()} charged")
            coordinator.stdin.close()
            coordinator.wait(SECONDS)
        for one in self.ids:
            until(partial(self.tenants.guard.gone, one), f"{name}: tenant {one} is gone")
            self.tenants.guard.remove(one)
        os.close(self.control)


def play_all(tenants: Tenants, count: int, without: str, missed: int) -> None:
    tenants.add(NEIGHBOUR, memory=LIMIT)
    neighbour = tenants.probe(tenant=NEIGHBOUR)
    assert neighbour.alloc(2) == [1, 0]
    assert neighbour.free() == 0
    control = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    before, calls, races, pieces, longest = manager.used(control), 0, 0, 0, 0.0
    for number, steps in enumerate(sequences(count, without)):
        one = Play(tenants, number, steps, before, missed)
        one.run()
        calls, races, pieces = calls + one.calls, races + one.races, pieces + one.pieces
        begun = time.monotonic()
        assert neighbour.alloc(2) == [1, 0], steps.splitlines()[0]
        assert neighbour.free() == 0
        longest = max(longest, time.monotonic() - begun)
        until(lambda: manager.used(control) == before, f"{steps.splitlines()[0]}: all is given back")
    os.close(control)
    print(
        f"sequences {COUNT}, calls {calls}, raced {races}, pieces {pieces}, neighbour's longest {longest * 1000:.0f} ms"
    )
    assert calls > 20 * count
    assert pieces > count
    assert races > count // 8
    assert longest < 2


@pytest.mark.timeout(60 + COUNT)
@pytest.mark.parametrize(("without", "missed"), [(RETAINING, 0), ("", SAMPLED)], ids=["all-charged", "sampled"])
def test_nothing_is_held_uncharged_behind_the_real_filter(tmp_path: Path, without: str, missed: int) -> None:
    play = partial(play_all, count=(COUNT + 1) // 2, without=without, missed=missed)
    guarded(prepare(tmp_path), play)
