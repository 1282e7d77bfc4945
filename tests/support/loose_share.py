"""A share without a container: a limits file and a region of its own, and the variables that name them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvc.share import limits, outside, region
from nvc.share.limits import Limits, LimitsNode
from nvc.share.model import ResolvedGpu
from nvc.share.outside import Outcome
from nvc.share.region import Region
from nvc.share.store import Entry, StoredShare


class LooseShare:
    """The two files in ``place`` (an empty directory). The GPU that methods speak of is the first, unless they say."""

    def __init__(
        self, place: Path, gpus: Sequence[ResolvedGpu], nodes: Sequence[LimitsNode], driver: str, library: str
    ) -> None:
        """library: what LD_PRELOAD is to be."""
        self.limits_path, self.region_path, self.library = place / "limits", place / "region", library
        self.limits = Limits(tuple(gpus), tuple(nodes), driver, place.name)
        self.limits_path.write_bytes(limits.encode(self.limits))
        with self.region_path.open("wb") as file:
            file.write(region.header_bytes())
            file.truncate(region.SIZE)
        # What the store looks for before it believes a file.
        self.limits_path.chmod(0o644)
        self.region_path.chmod(0o666)

    @property
    def variables(self) -> dict[str, str]:
        """What a program is started with to be held to the share."""
        return {
            "LD_PRELOAD": self.library,
            limits.VARIABLE: str(self.limits_path),
            region.VARIABLE: str(self.region_path),
        }

    def set(self, *, index: int = 0, **changes: Any) -> None:
        """Change fields of a GPU's ResolvedGpu in place, as ``nvc-py share set`` does.

        Weights are in force at once. A cap is, for processes that have one already; others take it up with their next
        call of the driver. Raises OSError; AssertionError for a process that was not reached.
        """
        gpus = list(self.limits.gpus)
        gpus[index] = gpus[index].replace(**changes)
        self._write(self.limits.replace(gpus=tuple(gpus)))
        if {"weight", "priority"} & set(changes):
            self._outside(outside.reweigh)

    def pause(self, paused: bool) -> None:
        """Stop or start every process, as ``nvc-py share pause`` and ``resume`` do. Raises as ``set``."""
        self._write(self.limits.replace(paused=paused))
        self._outside(lambda entry, limits: outside.freeze(entry, limits, frozen=paused))

    def _outside(self, act: Callable[[Entry, Limits], Outcome]) -> None:
        place = self.limits_path.parent
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with Entry(directory, str(place), StoredShare(place.name)) as entry:
            assert act(entry, self.limits).problems == ()

    def region(self) -> Region:
        """What the processes say they use. Raises FormatError."""
        descriptor = os.open(self.region_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return region.read(descriptor, len(self.limits.gpus))
        finally:
            os.close(descriptor)

    def used(self, index: int = 0) -> int:
        """Bytes that living processes have."""
        return self.region().used(index)

    def _write(self, new: Limits) -> None:
        descriptor = os.open(self.limits_path, os.O_RDWR | os.O_CLOEXEC)
        try:
            limits.write(descriptor, new)
        finally:
            os.close(descriptor)
        self.limits = new


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment less what would lead a program to our own files (carried packages, other shares).

    CUDA_VISIBLE_DEVICES stays: by it a run chooses its GPU (``tests.support.gpumeasure.chosen``).
    """
    ours = ("PYTHONPATH", "LD_PRELOAD")
    return {
        name: value
        for name, value in environment.items()
        if name == "CUDA_VISIBLE_DEVICES" or (name not in ours and not name.startswith(("NVC_", "CUDA_")))
    }
