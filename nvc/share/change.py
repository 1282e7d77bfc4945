"""A running container's share, changed: which GPUs are meant, what they get, the limits file. For command and agent."""

from __future__ import annotations

import os

from nvc.base.errors import ContainerError, InputError, reason
from nvc.share import abi, admission, store
from nvc.share.limits import with_shares
from nvc.share.model import Room
from nvc.share.policy import REQUESTS, Policy, change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from nvc.model import Gpu
    from nvc.share.admission import Promises
    from nvc.share.limits import Limits
    from nvc.share.model import GpuShare, ResolvedGpu

    #: The machine's GPUs, asked for only when needed: it may take a driver service.
    Inventory = Callable[[], Sequence[Gpu]]


class NotKnown:
    """A context without what an agent knows. contextlib would be a part of what a command waits for."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class Hold:
    """A context: the entry to be changed in the place of another one, with its lock held.

    Of a group it is the first one, with the limits of all and with ``others``; else the same, which stays open and
    locked. keys: called with the lock held: of the group's containers; None: the store is read for them.
    Entering raises ContainerError when another writer does not end, PrivilegeError.
    """

    def __init__(self, entry: store.Entry, keys: Callable[[], Iterable[str]] | None = None) -> None:
        self._entry = entry
        self._keys = keys
        self._group: list[store.Entry] = []

    def __enter__(self) -> store.Entry:
        self._entry.lock()
        if not self._entry.record.group:
            return self._entry
        self._group = store.group(self._entry, self._keys() if self._keys is not None else None)
        first, *others = self._group or [self._entry]
        first.others = tuple(others)
        return first

    def __exit__(self, *_: object) -> None:
        for one in self._group:
            one.close()
        self._entry.unlock_group()


def apply(
    entry: store.Entry,
    policy: Policy,
    wanted: GpuShare,
    selector: str,
    inventory: Inventory,
    *,
    force: bool,
    check: Callable[[Limits], None] = lambda after: None,
    known: Callable[[], AbstractContextManager[Promises | None]] = NotKnown,
) -> tuple[Limits, list[int]]:
    """Change the share of an entry whose lock is held; the limits after, and which of its GPUs were meant.

    selector: a UUID or its beginning, "#POSITION" among the container's GPUs, an index of the machine's; "": all.
    check: raises ContainerError where the limits cannot be kept; nothing is written then. known: entered while no
    entry comes or grows: what all tenants were promised at most; None: the store is read for it.
    Raises InputError, ContainerError.
    """
    now = entry.checked_limits()
    after, chosen = changed(now, policy, wanted, selector, inventory, force=force)
    check(after)
    if admission.grows(after, now):
        _write_admitted(entry, policy, now, after, inventory, known)
    else:
        write(entry, after)
    return after, chosen


def _write_admitted(
    entry: store.Entry,
    policy: Policy,
    now: Limits,
    after: Limits,
    inventory: Inventory,
    known: Callable[[], AbstractContextManager[Promises | None]],
) -> None:
    """While no other container is admitted. Raises ContainerError where a request grows beyond what others' leave."""
    directory, rooms = os.path.dirname(entry.path), tuple[Room, ...]()
    own = admission.owner_of(entry.record)

    def fits(promises: Promises) -> bool:
        """Whether it is known to. Raises ContainerError where it does not."""
        counts = policy.admission == REQUESTS or any(
            gpu.request or promises.have_range(gpu.uuid, own) for gpu in after.gpus
        )
        if rooms or not counts:
            admission.check(rooms, after, promises, now, own=own)
        return bool(rooms or not counts)

    while True:
        with store.Locked(directory), known() as promises:
            try:
                is_known = fits(promises if promises is not None else admission.others(entry.record, directory))
            except ContainerError:
                if promises is None:
                    raise
                is_known = fits(admission.others(entry.record, directory))  # less those that have ended
            if is_known:
                write(entry, after)
                return
        # It may take seconds, and no container waits for it.
        sizes = admission.rooms(policy, inventory())
        unknown = {gpu.uuid for gpu in after.gpus} - {room.uuid for room in sizes}
        rooms = (*sizes, *(Room(uuid, 0, policy.admission == REQUESTS) for uuid in unknown))


def changed(
    now: Limits, policy: Policy, wanted: GpuShare, selector: str, inventory: Inventory, *, force: bool
) -> tuple[Limits, list[int]]:
    """The limits ``now`` with the change that ``apply`` would make. Raises InputError."""
    if (wanted.cap or wanted.weight or wanted.priority or wanted.latency) and not abi.knows(now.driver):
        raise InputError(
            f"cap, weight and priority cannot be held: driver {now.driver} is not known",
            hint=f"drivers {abi.FIRST} to {abi.BEYOND - 1} are; mem can be changed",
        )
    chosen = places(now.gpus, selector, inventory)
    relative = (one for rule in (wanted, policy.maximum) for one in (rule.memory_part, rule.request_part))
    gpus = inventory() if any(relative) and (wanted.memory or wanted.memory_part) else ()
    shares = tuple(
        change(policy, next((one for one in gpus if one.uuid == gpu.uuid), None), gpu, wanted, force=force)
        if position in chosen
        else gpu
        for position, gpu in enumerate(now.gpus)
    )
    return now.replace(gpus=shares), chosen


def pause(entry: store.Entry, *, paused: bool) -> Limits:
    """Say in the limits of an entry whose lock is held whether it is paused; the limits. Raises ContainerError."""
    after = entry.checked_limits().replace(paused=paused)
    write(entry, after)
    return after


def move(entry: store.Entry, uuid: str, memory: int) -> None:
    """Put another limit of a range into force, as far as the range goes; of an entry whose lock is held.

    Nothing where it has no range any more. Raises ContainerError.
    """
    now = entry.checked_limits()
    gpus = tuple(
        gpu.replace(memory=min(max(memory, gpu.request), gpu.most)) if gpu.uuid == uuid and gpu.request else gpu
        for gpu in now.gpus
    )
    if gpus != now.gpus:
        write(entry, now.replace(gpus=gpus))


def places(gpus: Sequence[ResolvedGpu], selector: str, inventory: Inventory | None) -> list[int]:
    """The positions among a container's ``gpus`` that ``selector`` means. Raises InputError."""
    if not selector:
        return list(range(len(gpus)))
    uuid = selector
    if selector.isascii() and selector.isdigit() and inventory is not None:
        index = int(selector[:6])
        uuid = next((gpu.uuid for gpu in inventory() if gpu.index == index), selector)
    found = [
        position
        for position, gpu in enumerate(gpus)
        if selector == f"#{position}" or (len(uuid) > 4 and gpu.uuid.lower().startswith(uuid.lower()))
    ]
    if len(found) != 1:
        names = ", ".join(f"#{position} {gpu.uuid}" for position, gpu in enumerate(gpus))
        problem = "names more than one GPU" if found else "is no GPU of this container"
        raise InputError(f"{selector!r} {problem}", hint=f"it has {names}")
    return found


def write(entry: store.Entry, after: Limits) -> None:
    """Into the entry that ``Hold`` gave, and those of its group. Raises ContainerError."""
    for one in (entry, *entry.others):
        _write(one, after)


def _write(entry: store.Entry, after: Limits) -> None:
    try:
        entry.change(with_shares(entry.limits(), after))
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise ContainerError(f"{entry.path}/{store.LIMITS}: {why}") from None
