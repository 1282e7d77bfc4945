"""A driver root with an inventory cache of its own, which counts how often NVML is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvc.base.log import Log
from nvc.driver.facts import NvmlGpu, NvmlSystem
from nvc.driver.inventory import load
from nvc.model import DriverOptions, Inventory
from tests.support.driver_root import H200, SYSTEM, DriverRoot


class Machine:
    """A driver root with its cache file, and a count of the questions to NVML."""

    def __init__(self, root: DriverRoot, cache: Path) -> None:
        self.root = root
        self.cache = cache
        self.asked = 0
        self.options = DriverOptions()
        self.environ = dict(root.environ)
        self.host = root.host
        self.gpus: tuple[NvmlGpu, ...] = (H200,)
        self.log: Any = Log.none()

    def query(self) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        self.asked += 1
        return SYSTEM, self.gpus

    def load(self, cache: Path | None = None) -> Inventory:
        path = str(cache or self.cache)
        return load(self.host, self.options, self.query, cache=path, log=self.log, environ=self.environ)
