"""Admission: whether the requests of a GPU's shares fit on it together.

Beside a range (``mem=8Gi..40Gi``) that holds for every share of the GPU, for what is guaranteed to one must not be
taken by another; with ``[share] admission = "requests"`` always. A share without a range requests all of its memory,
and one without a limit the whole GPU.
"""

from __future__ import annotations

from nvc.base.errors import ContainerError
from nvc.share import store
from nvc.share.memory import format_memory
from nvc.share.model import Room
from nvc.share.policy import REQUESTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvc.model import Gpu
    from nvc.share.entry import StoredShare
    from nvc.share.limits import Limits
    from nvc.share.model import ResolvedGpu
    from nvc.share.policy import Policy


def rooms(policy: Policy, gpus: Iterable[Gpu]) -> tuple[Room, ...]:
    return tuple(Room(gpu.uuid, gpu.memory, policy.admission == REQUESTS) for gpu in gpus)


def request(gpu: ResolvedGpu, total: int) -> int:
    """Bytes that a share is promised of a GPU of ``total`` bytes."""
    return min(gpu.request or gpu.memory or total, total)


def check(rooms: Sequence[Room], wanted: Limits, others: Sequence[Limits], before: Limits | None = None) -> None:
    """Raises ContainerError where the requests of ``wanted`` do not fit beside those of ``others``. Pure.

    before: what it has, where it runs: a request that does not grow is not refused.
    """
    for room in rooms:
        own = _of(wanted, room.uuid)
        claims = [gpu for gpu in (_of(limits, room.uuid) for limits in others) if gpu is not None]
        if own is None or not claims or not (room.always or own.request or any(gpu.request for gpu in claims)):
            continue
        if not room.memory:
            raise ContainerError(
                f"share: the memory of GPU {room.uuid} is not known, so requests cannot be admitted",
                hint="see nvc-py info; the driver did not say it",
            )
        had = _of(before, room.uuid) if before is not None else None
        size = request(own, room.memory)
        if had is not None and size <= request(had, room.memory) and bool(had.request) >= bool(own.request):
            continue
        taken = sum(request(gpu, room.memory) for gpu in claims)
        if taken + size > room.memory:
            raise ContainerError(
                f"share: a request of {format_memory(size)} does not fit on GPU {room.uuid}: {len(claims)} other "
                f"containers have requests of {taken >> 20}Mi, and it has {room.memory >> 20}Mi",
                hint="ask for a smaller request (mem=8Gi..40Gi guarantees 8Gi), or end one of nvc-py share ls",
            )


def others(record: StoredShare, directory: str) -> list[Limits]:
    """The limits of all other living tenants: a group once. Raises PrivilegeError."""
    found: dict[str, Limits] = {}
    for entry in store.entries(directory)[0]:
        with entry:
            group = entry.record.group
            is_own = entry.record.key == record.key or (group and group == record.group)
            if is_own or not entry.is_alive():
                continue
            try:
                found[f"group {group}" if group else entry.record.key] = entry.limits()
            except (OSError, ValueError):
                continue  # a container with damaged limits is refused every allocation
    return list(found.values())


def _of(limits: Limits, uuid: str) -> ResolvedGpu | None:
    return next((gpu for gpu in limits.gpus if gpu.uuid == uuid), None)
