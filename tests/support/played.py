"""Sequences of hostile calls (native/test/sequence.h), played by real processes of two tenants: ``guard_player``."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import leftovers
from tests.support.guarded import GuardedTenant
from tests.support.native import CHECKOUT, build

#: Each sequence begins with these processes: tenant 0 has the first and the last, tenant 1 the other one.
TASKS = {0: 0, 1: 1, 3: 0}
#: Half of the sequences have no steps by which UVM retains pieces: then all is charged. With them, pieces below 32 MiB
#: are found by sampling (docs/internals/guard.md): of each tenant so many bytes can be missed.
RETAINING = "map,batch"
SAMPLED = 224 << 20
SECONDS = 30


@dataclass(frozen=True)
class Counts:
    """Calls, of them continued ones that were raced, pieces of memory; those that were refused, by status."""

    calls: int = 0
    raced: int = 0
    pieces: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, line: str) -> Counts:
        """What ``guard_player`` says at the end of a sequence. Raises ValueError."""
        words = line.split()
        statuses = (word.partition(":") for word in words[3:])
        return cls(*map(int, words[:3]), Counter({status: int(count) for status, _, count in statuses}))

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.calls + other.calls, self.raced + other.raced, self.pieces + other.pieces, self.refused + other.refused
        )


def sequences(count: int, seed: int, without: str) -> list[str]:
    """Steps, by ``guard_sequences print``; each begins with its name. without: kinds of steps, with commas."""
    command = [str(build("guard_sequences") / "guard_sequences"), "print", str(count), str(seed), "", without]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    return [one + "\n" for one in out.split("\n\n") if one.strip()]


def recorded(without: str) -> list[str]:
    """The sequences of tests/native/sequences that have no step of these kinds; each begins with its name."""
    kinds = set(without.split(","))
    found = sorted((CHECKOUT / "tests/native/sequences").glob("*.txt"))
    texts = [f"# {path.stem}\n{path.read_text()}" for path in found]
    return [text for text in texts if not kinds & set(text.split())]


@contextmanager
def played(
    folder: Path,
    steps: str,
    start: Callable[[int, list[str]], object],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Counts]:
    """Make the steps, in an empty folder; what they hold is held until the block ends.

    start: has a tenant, 0 or 1, run a command, and does not wait. environment: which GPU (native/test/player.h); None:
    this process's. Raises AssertionError.
    """
    player = str(build("guard_player") / "guard_player")
    with subprocess.Popen(
        [player, "play", str(folder)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as coordinator:
        assert coordinator.stdin and coordinator.stdout and coordinator.stderr
        try:
            for number, tenant in TASKS.items():
                start(tenant, [player, "task", str(number), str(folder)])
            coordinator.stdin.write(steps + "\n")
            coordinator.stdin.flush()
            line = coordinator.stdout.readline()
            assert line, (steps.splitlines()[0], coordinator.stderr.read())
            yield Counts.of(line)
        finally:
            coordinator.stdin.close()
            coordinator.wait(SECONDS)


@contextmanager
def running(
    folder: Path, steps: str, wrap: Callable[[int, list[str]], list[str]], environment: Mapping[str, str]
) -> Iterator[Counts]:
    """``played`` by processes that end with the block. wrap: makes a tenant's command line."""
    processes = list[subprocess.Popen[bytes]]()

    def start(tenant: int, words: list[str]) -> None:
        processes.append(subprocess.Popen(wrap(tenant, words), env=environment))

    try:
        with played(folder, steps, start, environment) as counts:
            yield counts
    finally:
        for process in processes:
            process.kill()
            process.wait()


def play_unguarded(
    folder: Callable[[], Path], every: Sequence[str], environment: Mapping[str, str], seconds: float
) -> Counts:
    """The sequences, and again for so many seconds, without any guard: what a driver does by itself.

    Counts are of their first time. Raises AssertionError.
    """
    sum_of, end = Counts(), time.monotonic() + seconds
    for number, steps in enumerate(itertools.cycle(every)):
        if number >= len(every) and time.monotonic() > end:
            break
        with running(folder(), steps, lambda _, words: words, environment) as counts:
            sum_of += counts if number < len(every) else Counts()
    return sum_of


class TwoTenants:
    """Sequences one after the other by two tenants that stay, and what was found.

    folder: makes an empty one, with a short path. usage: bytes in use of the GPU. missed: bytes that may be held
    uncharged.
    """

    def __init__(
        self,
        folder: Callable[[], Path],
        tenants: Sequence[GuardedTenant],
        environment: Mapping[str, str],
        usage: Callable[[], int],
        missed: int,
    ) -> None:
        self.folder, self.tenants, self.usage, self.missed = folder, tenants, usage, missed
        self.environment = {**environment, "PLAYED_GPU": tenants[0].gpu.uuid.removeprefix("GPU-").replace("-", "")}
        self.counts, self.number, self.wrong, self.most = Counts(), 0, list[str](), 0
        self.before = usage()

    def play(self, steps: str) -> None:
        """One of them. Raises AssertionError where the next one cannot begin."""
        name = steps.splitlines()[0]
        with running(
            self.folder(), steps, lambda tenant, words: self.tenants[tenant].wrap(words), self.environment
        ) as counts:
            self.counts, self.number = self.counts + counts, self.number + 1
            if not leftovers.until(self._is_covered, seconds=2):
                self.wrong.append(f"{name}: {self._uncharged() >> 20} MiB uncharged")
            self.most = max(self.most, self._uncharged())
        for tenant in self.tenants:
            if not tenant.empty():
                self.wrong.append(f"{name}: {tenant.used() >> 20} MiB stay charged")
                raise AssertionError(self.wrong)

    def play_all(self, every: list[str], seconds: float) -> int:
        """As many as there is time for; how many."""
        end, number = time.monotonic() + seconds, self.number
        for steps in every:
            if time.monotonic() > end:
                break
            self.play(steps)
        return self.number - number

    def _uncharged(self) -> int:
        held = self.usage() - self.before
        return max(0, held - sum(tenant.used() for tenant in self.tenants))

    def _is_covered(self) -> bool:
        return self._uncharged() <= self.missed
