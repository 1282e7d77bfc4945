"""Utilisation and power of GPUs, by NVML: one driver service for as long as ``top`` runs, which is never waited for.

The agent has neither: samples of its prober are of GPUs with tenants and of no GPU under MIG, and power only NVML says.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvc.driver.facts import NvmlLoad
    from nvc.driver.service import DriverClient
    from rpc.client import Pending

#: Seconds that one look waits for an answer, and one picture (--once) from the start of the service on: NVML takes
#: seconds where no other process keeps the driver loaded.
LOOK_S, ONCE_S = 0.1, 1.0


class Gauges:
    """start: starts the driver service. Raises nothing: without an answer there are no numbers."""

    def __init__(self, start: Callable[[], DriverClient]) -> None:
        self._start = start
        self._client: DriverClient | None = None
        self._begun = 0.0
        self._pending: Pending | None = None
        #: Whether an answer has come, or none can come any more.
        self.is_settled = False
        self._loads: Mapping[str, NvmlLoad] = {}

    def ask(self) -> None:
        """Put the question, unless the last one is still to be answered. Starts the service with the first."""
        if self._pending is not None or (self.is_settled and self._client is None):
            return
        try:
            if self._client is None:
                self._begun = time.monotonic()
                self._client = self._start()
            self._pending = self._client.begin_load()
        except (NvcError, OSError):
            self._give_up()

    def read(self, *, once: bool = False) -> Mapping[str, NvmlLoad]:
        """UUID -> what the GPU does, by the last answer. once: there is no later look."""
        if self._client is None or self._pending is None:
            return self._loads
        if not self._pending.is_ready(self._begun + ONCE_S - time.monotonic() if once else LOOK_S):
            return self._loads
        pending, self._pending = self._pending, None
        try:
            self._loads = {load.uuid: load for load in self._client.load(pending).gpus}
            self.is_settled = True
        except NvcError:
            self._give_up()
        return self._loads

    def close(self) -> None:
        """End the service."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _give_up(self) -> None:
        self._loads, self.is_settled = {}, True
        self.close()
