"""Processes with a listener, which they give to an agent's socket as a runtime does."""

from __future__ import annotations

import json
import select
import subprocess
from pathlib import Path

from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from tests.support.guarded import build_launcher

KEY = "c1"
GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)
#: Maps a file shared, not from its beginning, which is announced, for every line that it reads.
PROGRAM = Path(__file__).parent / "programs/map_on_request.py"


class Contained:
    """A process with a listener, which it gives to DIRECTORY/listen as a runtime does, and then maps on request."""

    def __init__(self, place: Path, first: int = 0, status: str = "creating", **changes: object) -> None:
        launcher = place / "filtered"
        if not launcher.exists():
            build_launcher(place)
            (place / "mapped").write_bytes(bytes(8192))
        state = {"id": KEY, "status": status, "pid": first, "bundle": "/", **changes}
        message = place / f"message{len(list(place.glob('message*')))}"
        message.write_text(json.dumps({"fds": ["seccompFd"], "pid": "@", "state": state}).replace('"@"', "PID"))
        words = [launcher, place / "agent/listen", place / "filter", message]
        self.process = subprocess.Popen(
            [*words, "/usr/bin/python3", PROGRAM, place / "mapped"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def enter(self, shares: Path, key: str = KEY) -> None:
        """What a container's hook does."""
        record = StoredShare(key, key, self.pid, store.start_time(self.pid))
        store.create(record, Limits((GPU,), (), "580.105.08", key), b"", directory=str(shares))

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = 30) -> str:
        """Its next line; "" when none comes."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline() if ready else ""

    def maps(self) -> bool:
        self.say()
        return self.answer() == "mapped\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)
