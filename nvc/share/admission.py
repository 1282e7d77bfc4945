"""Admission: whether the requests of a GPU's shares fit on it together.

Beside a range (``mem=8Gi..40Gi``) that holds for every share of the GPU, for what is guaranteed to one must not be
taken by another; with ``[share] admission = "requests"`` always. A share without a range requests all of its memory,
and one without a limit the whole GPU.
"""

from __future__ import annotations

from nvc.base.errors import ContainerError
from nvc.share import store
from nvc.share.entry import check_room
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

#: More bytes than any request has: that of the whole GPU.
_ALL = 1 << 64


def rooms(policy: Policy, gpus: Iterable[Gpu]) -> tuple[Room, ...]:
    return tuple(Room(gpu.uuid, gpu.memory, policy.admission == REQUESTS) for gpu in gpus)


def request(gpu: ResolvedGpu, total: int) -> int:
    """Bytes that a share is promised of a GPU of ``total`` bytes."""
    return min(gpu.request or gpu.memory or total, total)


class Promises:
    """What tenants were promised, by GPU. Kept as sums: a question takes no longer with more tenants."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[StoredShare, Sequence[ResolvedGpu]]] = {}
        self._keys: dict[str, set[str]] = {}
        self._gpus: dict[str, _GpuPromises] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, record: StoredShare, limits: Limits) -> None:
        """Instead of what an entry of that key had."""
        self.drop(record.key)
        owner = owner_of(record)
        self._entries[record.key] = record, limits.gpus
        self._keys.setdefault(owner, set()).add(record.key)
        self._claim(owner, limits.gpus)

    def drop(self, key: str) -> None:
        if key not in self._entries:
            return
        record, gpus = self._entries.pop(key)
        owner = owner_of(record)
        self._keys[owner].discard(key)
        self._claim(owner, gpus)
        if not self._keys[owner]:
            del self._keys[owner]

    def entries(self) -> Iterable[tuple[StoredShare, Sequence[ResolvedGpu]]]:
        """All of them, also those of one group."""
        return self._entries.values()

    def of(self, uuid: str, total: int, without: str = "") -> tuple[int, int]:
        """Of a GPU of ``total`` bytes: how many tenants, and their requests together.

        without: a tenant that does not count, by ``owner_of``.
        """
        gpu = self._gpus.get(uuid)
        return gpu.promised(total, without) if gpu is not None else (0, 0)

    def have_range(self, uuid: str, without: str = "") -> bool:
        """Whether one of a GPU's tenants has a range."""
        gpu = self._gpus.get(uuid)
        return gpu is not None and bool(len(gpu.ranges) - (without in gpu.ranges))

    def _claim(self, owner: str, gpus: Iterable[ResolvedGpu]) -> None:
        """Of a group what the container has that has most: one that starts does not have what was given to it yet."""
        for uuid in (gpu.uuid for gpu in gpus):
            every = (_among(self._entries[key][1], uuid) for key in self._keys[owner])
            own = [gpu for gpu in every if gpu is not None]
            self._gpus.setdefault(uuid, _GpuPromises()).put(owner, own)


class _GpuPromises:
    def __init__(self) -> None:
        self._total = self._memory = 0
        #: Of tenants, by ``owner_of``: the GPU's part of their containers' limits, and bytes, not above ``_total``.
        self._own: dict[str, list[ResolvedGpu]] = {}
        self._claims: dict[str, int] = {}
        self.ranges: set[str] = set()

    def put(self, owner: str, own: list[ResolvedGpu]) -> None:
        """own: of its containers; none: it has nothing of the GPU."""
        self._memory -= self._claims.pop(owner, 0)
        self._own.pop(owner, None)
        self.ranges.discard(owner)
        if own:
            self._own[owner] = own
            self._claims[owner] = max(request(gpu, self._total) for gpu in own)
            self._memory += self._claims[owner]
        if any(gpu.request for gpu in own):
            self.ranges.add(owner)

    def promised(self, total: int, without: str) -> tuple[int, int]:
        if total != self._total:
            self._total = total
            for owner, own in tuple(self._own.items()):
                self.put(owner, own)
        return len(self._claims) - (without in self._claims), self._memory - self._claims.get(without, 0)


def owner_of(record: StoredShare) -> str:
    """The tenant of an entry: a group is one."""
    return f"group {record.group}" if record.group else record.key


def check(
    rooms: Sequence[Room], wanted: Limits, others: Promises, before: Limits | None = None, *, own: str = ""
) -> None:
    """Raises ContainerError where the requests of ``wanted`` do not fit beside those of ``others``. Pure.

    before: what it has, where it runs: a request that does not grow is not refused. own: its tenant, by ``owner_of``,
    which ``others`` may have.
    """
    for room in rooms:
        gpu, (tenants, taken) = _of(wanted, room.uuid), others.of(room.uuid, room.memory, own)
        if gpu is None or not tenants or not (room.always or gpu.request or others.have_range(room.uuid, own)):
            continue
        if not room.memory:
            raise ContainerError(
                f"share: the memory of GPU {room.uuid} is not known, so requests cannot be admitted",
                hint="see nvc-py info; the driver did not say it",
            )
        had = _of(before, room.uuid) if before is not None else None
        size = request(gpu, room.memory)
        if had is not None and not _grows(gpu, had, room.memory):
            continue
        if taken + size > room.memory:
            raise ContainerError(
                f"share: a request of {format_memory(size)} does not fit on GPU {room.uuid}: {tenants} other "
                f"containers have requests of {taken >> 20}Mi, and it has {room.memory >> 20}Mi",
                hint="ask for a smaller request (mem=8Gi..40Gi guarantees 8Gi), or end one of nvc-py share ls",
            )


def grows(wanted: Limits, before: Limits) -> bool:
    """Whether others may lose by ``wanted``: a request that is larger than before, or is guaranteed now."""
    pairs = ((gpu, _of(before, gpu.uuid)) for gpu in wanted.gpus)
    return any(had is None or _grows(gpu, had, _ALL) for gpu, had in pairs)


def _grows(gpu: ResolvedGpu, had: ResolvedGpu, total: int) -> bool:
    return request(gpu, total) > request(had, total) or bool(gpu.request) > bool(had.request)


def others(record: StoredShare, directory: str) -> Promises:
    """What all other living tenants were promised. Raises PrivilegeError, ContainerError."""
    found, own = Promises(), owner_of(record)
    for entry in store.each(directory):
        with entry:
            if owner_of(entry.record) == own or not entry.is_alive():
                continue
            try:
                found.put(entry.record, entry.limits())
            except (OSError, ValueError) as error:
                check_room(entry.path, error)
                continue  # a container with damaged limits is refused every allocation
    return found


def _of(limits: Limits, uuid: str) -> ResolvedGpu | None:
    return _among(limits.gpus, uuid)


def _among(gpus: Iterable[ResolvedGpu], uuid: str) -> ResolvedGpu | None:
    return next((gpu for gpu in gpus if gpu.uuid == uuid), None)
