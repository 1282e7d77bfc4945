"""A running container's share, changed: which GPUs are meant, what they get, the limits file. For command and agent."""

from __future__ import annotations

from nvc.base.errors import ContainerError, InputError, reason
from nvc.share import store
from nvc.share.policy import Policy, change

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvc.model import Gpu
    from nvc.share.limits import Limits
    from nvc.share.model import GpuShare, ResolvedGpu

    #: The machine's GPUs, asked for only when needed: it may take a driver service.
    Inventory = Callable[[], Sequence[Gpu]]


def apply(
    entry: store.Entry, policy: Policy, wanted: GpuShare, selector: str, inventory: Inventory, *, force: bool
) -> tuple[Limits, list[int]]:
    """Change the share of an entry whose lock is held; the limits after, and which of its GPUs changed.

    selector: a UUID or its beginning, "#POSITION" among the container's GPUs, an index of the machine's; "": all.
    Raises InputError, ContainerError.
    """
    now = limits(entry)
    chosen = places(now.gpus, selector, inventory)
    gpus = inventory() if wanted.memory_part or (wanted.memory and policy.maximum.memory_part) else ()
    changed = tuple(
        change(policy, next((one for one in gpus if one.uuid == gpu.uuid), None), gpu, wanted, force=force)
        if position in chosen
        else gpu
        for position, gpu in enumerate(now.gpus)
    )
    after = now.replace(gpus=changed)
    write(entry, after)
    return after, chosen


def pause(entry: store.Entry, *, paused: bool) -> Limits:
    """Say in the limits of an entry whose lock is held whether it is paused; the limits. Raises ContainerError."""
    after = limits(entry).replace(paused=paused)
    write(entry, after)
    return after


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


def limits(entry: store.Entry) -> Limits:
    """What an entry's container may use now. Raises ContainerError."""
    try:
        return entry.limits()
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise ContainerError(
            f"{entry.path}/{store.LIMITS}: {why}", hint="its programs are refused GPU memory until it is started anew"
        ) from None


def write(entry: store.Entry, after: Limits) -> None:
    """Raises ContainerError."""
    try:
        entry.change(after)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise ContainerError(f"{entry.path}/{store.LIMITS}: {why}") from None
