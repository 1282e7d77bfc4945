"""Rounds beside a hostile neighbour: how many, how each ended, and when the host's canaries are looked at.

NVC_SOAK_SECONDS: seconds of each way (2 when not set). NVC_SOAK_COUNTS: a file that gets the counts, a line each.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from nvc.base.errors import BY_STAGE, NvcError
from tests.support.racer import NAMES, Canary, Racer

SECONDS = float(os.environ.get("NVC_SOAK_SECONDS", "2"))
COUNTS = os.environ.get("NVC_SOAK_COUNTS", "")
#: Not what the container's own mounts are on, which is the engine's to make.
RACED = tuple(name for name in NAMES if name not in ("dev", "proc"))
#: Rounds between two looks at the canaries, which the failure names; and with one root.
LOOK, RENEWED = 50, 500
#: What differs from run to run in a message: paths, numbers.
_TIME = re.compile(r'\btime="[^"]*" ')
_PATH, _NUMBER = re.compile(r"(?<![\w/])/[^\s:,'\"]*"), re.compile(r"\b(?:0x[0-9a-f]+|\d+)\b")
#: No reason: the program, or the process behind it, met what it was not written for.
_UNNAMED = re.compile(
    r"Traceback|internal error|unreadable reply|the helper has ended|panic:|core dumped|SIGSEGV|no answer in"
)
#: Not an engine's word that a hook failed: why it did must be said.
_ENGINES = re.compile(r"(?i)^(?!.*\bhook).*(\berror\b|fail|invalid|not a directory|no such|denied|unable|cannot)")


def reason_of(text: str) -> str:
    """The line that says why, without what differs from run to run. Raises AssertionError where none does."""
    assert not _UNNAMED.search(text), text
    for line in text.splitlines():
        if stage := next((stage for stage in BY_STAGE if f"{stage}: " in line), ""):
            return _general(line[line.index(stage) :])
    # The engine's own: it mounts in the root, too.
    for line in text.splitlines():
        if _ENGINES.search(line):
            return _general(line)
    raise AssertionError(f"no reason is named: {text!r}")


def _general(line: str) -> str:
    return _NUMBER.sub("N", _PATH.sub("PATH", _TIME.sub("", line)))[:160]


class Rounds:
    """Of one way. goal: their number, after which the time that is left is not used.

    Every round in which the container did not get all is ``failed``, for a reason that is named.
    """

    def __init__(self, what: str, canary: Canary, goal: int, names: tuple[str, ...] = RACED) -> None:
        self.what = what
        self.done = self.begun = self.exchanges = 0
        self.reasons: Counter[str] = Counter()
        self._canary, self.goal, self._names = canary, goal, names
        self._start = time.monotonic()

    def beside(self, make: Callable[[], Path], renewed: int = RENEWED) -> Iterator[Path]:
        """The root of each round, which the racer works on; ``make`` is asked for another every ``renewed`` rounds."""
        while not self._is_over():
            rootfs = make()
            racer = Racer(rootfs, self._canary.place, self._names)
            with racer.running():
                for _ in range(renewed):
                    if self._is_over():
                        break
                    self.begun += 1
                    yield rootfs
                    if self.begun % LOOK == 0:
                        self._look()
            self.exchanges += racer.count
        self._close()

    def failed(self, problem: NvcError | str) -> None:
        """This round: for the reason that an error, or a program's output, has."""
        if isinstance(problem, NvcError):
            assert problem.stage, repr(problem)
        self.reasons[reason_of(str(problem))] += 1

    def _is_over(self) -> bool:
        return time.monotonic() - self._start >= SECONDS or self.begun == self.goal

    def _close(self) -> None:
        self._look()
        line = {
            "what": self.what,
            "rounds": self.begun,
            "gave all": self.done,
            "exchanges": self.exchanges,
            "seconds": round(time.monotonic() - self._start),
            "reasons": dict(self.reasons.most_common()),
        }
        print(json.dumps(line))
        if COUNTS:
            with Path(COUNTS).open("a") as file:
                file.write(json.dumps(line) + "\n")
        assert self.done + self.reasons.total() == self.begun > 0
        assert self.exchanges > 1000

    def _look(self) -> None:
        try:
            self._canary.check()
        except AssertionError as error:
            raise AssertionError(f"{self.what}, rounds {max(self.begun - LOOK, 0)} to {self.begun}: {error}") from error
