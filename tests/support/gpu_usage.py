"""The memory in use of a GPU, looked at all the time: one process of nvidia-smi, which takes a second to start."""

from __future__ import annotations

import subprocess
import threading
from types import TracebackType
from typing import Self

#: Milliseconds between two looks.
PAUSE_MS = 20
SECONDS = 10.0


class GpuUsage:
    """What nvidia-smi says, of the GPU with this UUID; bytes, in whole MiB."""

    def __init__(self, uuid: str) -> None:
        query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        self._process = subprocess.Popen(
            ["nvidia-smi", "-i", uuid, *query, "-lms", str(PAUSE_MS)], stdout=subprocess.PIPE, text=True
        )
        self._changed = threading.Condition()
        self._looks, self._mib = 0, 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __call__(self) -> int:
        """As it is now: of a look that began after the call. Raises AssertionError."""
        with self._changed:
            wanted = self._looks + 2
            assert self._changed.wait_for(lambda: self._looks >= wanted, SECONDS), "nvidia-smi says nothing"
            return self._mib << 20

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._looks, self._mib = self._looks + 1, int(line)
                self._changed.notify_all()
