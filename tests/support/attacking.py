"""A hostile tenant beside another one, on a simulated GPU: tests/system/attacks, a step at a time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.leftovers import wait_until
from tests.support.simgpu import SimGpu, with_gpu
from tests.support.tenants import Tenants

GIB = 1 << 30
LIMIT = 10 * GIB


class Attack:
    """One attack of tenant 1 while tenant 2 holds 2 GiB; afterwards tenant 2 is as it was."""

    def __init__(self, tenants: Tenants, place: Path) -> None:
        self.tenants, self.place = tenants, place
        tenants.add(1, memory=LIMIT)
        tenants.add(2, memory=4 * GIB)
        self.victim = self.start("victim", tenant=2)
        assert self.said(self.victim, "memory") == 0
        self.client, self.handle = self.said(self.victim, "client"), self.said(self.victim, "handle")
        self.main: subprocess.Popen[str] | None = None

    def start(self, *words: object, tenant: int = 1) -> subprocess.Popen[str]:
        return self.tenants.start(self.place / "attack", *map(str, words), tenant=tenant)

    def begin(self, *words: object) -> None:
        self.main = self.start(*words)

    def said(self, process: subprocess.Popen[str], key: str) -> int:
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith(f"{key}="), (key, line, process.poll())
        return int(line.partition("=")[2])

    def get(self, key: str) -> int:
        assert self.main
        return self.said(self.main, key)

    def go(self) -> None:
        """Let it go on. It may have been ended."""
        assert self.main
        assert self.main.stdin
        with suppress(BrokenPipeError):
            os.write(self.main.stdin.fileno(), b"\n")

    def is_within(self) -> bool:
        """Whether the program goes on once the driver counts no more than the quota. Otherwise it was ended."""
        assert self.main
        main = self.main
        wait_until(lambda: main.poll() is not None or self.tenants.of(1).driver_usage <= LIMIT, "the quota is kept")
        return main.poll() is None

    def memory(self) -> int:
        return self.tenants.of(1).memory

    def seen(self) -> None:
        """Let it go on when what it mapped, 1.5 GiB of managed memory, is counted."""
        wait_until(lambda: self.tenants.of(1).managed == 3 * GIB // 2, "the mapping is seen")
        self.go()

    def published(self) -> set[str]:
        """Reasons that were counted, also of a guard that is gone."""
        return set(dict(self.tenants.guard.status(1).reasons))

    def is_gone(self) -> bool:
        guard = self.tenants.guard
        return guard.gone(1) and guard.status(1).gpus[0].memory == 0

    def was_ended(self) -> bool:
        return 1 in self.tenants.guard.lost() and "toctou-killed" in self.published()

    def end(self) -> None:
        """The attacker goes, and everything is as before.

        Its container may have been ended with its guard, for memory that it won and kept (native/guard/reconcile.c).
        """
        assert self.main
        if self.main.stdin:
            self.main.stdin.close()
        self.main.wait(30)
        wait_until(lambda: self.is_gone() or self.was_ended(), "tenant 1 is gone")
        assert self.tenants.of(2).memory == 2 * GIB
        assert self.tenants.reasons(2) == {}
        assert self.victim.stdin
        self.victim.stdin.write("\n")
        self.victim.stdin.flush()
        assert self.said(self.victim, "freed") == 0


def attack(place: Path, function: Callable[[Attack], None]) -> None:
    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            one = Attack(tenants, place)
            function(one)
            one.end()

    with_gpu(place, inside)
