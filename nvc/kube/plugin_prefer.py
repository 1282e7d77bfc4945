"""Which of the free devices a container had better get. Pure; the kubelet may give others.

Shares of GPUs: from those with the fewest in use, so that load spreads. Whole GPUs: those that lie closest together in
the machine, so that they reach each other without the processors' interconnect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Beside links of the PCI path that two GPUs have in common: on one node of processors and memory.
_SAME_NUMA = 1


class Place(Record):
    """Where a GPU is. path: of its PCI device below /sys/devices, "" unknown. numa: node, -1 unknown."""

    path: str = ""
    numa: int = -1


def preferred(
    gpu_of: dict[str, str],
    replicas: int,
    available: Sequence[str],
    must: Sequence[str],
    size: int,
    places: dict[str, Place],
) -> list[str]:
    """``size`` of ``available``, ``must`` among them; fewer where there are not so many.

    gpu_of: id -> UUID of its GPU, of all ids, in the machine's order. places: by the GPU's UUID.
    """
    offered = set(available)
    free = [name for name in gpu_of if name in offered]
    chosen = [name for name in must if name in gpu_of][:size]
    if replicas > 1:
        return _spread(replicas, gpu_of, free, chosen, size)
    return _close(gpu_of, free, chosen, size, places)


def _spread(replicas: int, gpu_of: dict[str, str], free: list[str], chosen: list[str], size: int) -> list[str]:
    used = dict.fromkeys(gpu_of.values(), replicas)
    rest = [name for name in free if name not in chosen]
    for name in rest:
        used[gpu_of[name]] -= 1
    while len(chosen) < size and rest:
        best = min(rest, key=lambda name: used[gpu_of[name]])
        used[gpu_of[best]] += 1
        rest.remove(best)
        chosen.append(best)
    return chosen


def _close(gpu_of: dict[str, str], free: list[str], must: list[str], size: int, places: dict[str, Place]) -> list[str]:
    """Grown from each free device in turn, always by the closest one; of these sets the one that lies closest.

    Of equal ones that which leaves the others closest: a container that wants them later gets a good set too.
    """
    rest = [name for name in free if name not in must]
    place = {name: places.get(gpu_of[name], Place()) for name in gpu_of}

    def inside(names: Sequence[str]) -> int:
        return sum(_closeness(place[a], place[b]) for i, a in enumerate(names) for b in names[i + 1 :])

    def grown(start: list[str]) -> list[str]:
        names = list(start)
        others = [name for name in rest if name not in names]
        while len(names) < size and others:
            best = max(others, key=lambda name: sum(_closeness(place[name], place[one]) for one in names))
            others.remove(best)
            names.append(best)
        return names

    starts = [must] if must or size <= 0 else [[name] for name in rest]
    sets = [grown(start) for start in starts if len(start) <= size]
    return max(sets, key=lambda names: (inside(names), inside([n for n in rest if n not in names])), default=list(must))


def _closeness(one: Place, other: Place) -> int:
    common = 0
    if one.path and other.path:
        for mine, theirs in zip(one.path.split("/"), other.path.split("/"), strict=False):
            if mine != theirs:
                break
            common += 1
    return 2 * common + (_SAME_NUMA if one.numa == other.numa >= 0 else 0)
