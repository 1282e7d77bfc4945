"""What several sources say of one GPU, as one share: of each setting the tightest. Pure.

A container's annotations and variables are in part its image's, and nothing tells which: old Podmans copy an image's
annotations, and every engine its ENV. So none of them gives a container more than another one does.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.request.selection import normalize_bus_id
from nvc.share.dialects import filled
from nvc.share.memory import most_of, request_of
from nvc.share.model import DEFAULT_LATENCY_US, DEFAULT_WEIGHT, RANK, SERVICE, WHOLE_MEMORY, GpuShare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvc.model import Gpu
    from nvc.share.dialects import RequestedShare


def by_gpu(requested: RequestedShare, gpus: Sequence[Gpu], default: GpuShare, warnings: list[str]) -> list[GpuShare]:
    """The share requested of each GPU, of all sources. Raises InputError that names a source, and what it names."""
    every = [said_by(one, gpus, warnings) for one in (requested, *requested.also)]
    return [tightest(shares, gpu, default) for gpu, *shares in zip(gpus, *every, strict=True)]


def said_by(requested: RequestedShare, gpus: Sequence[Gpu], warnings: list[str]) -> list[GpuShare]:
    """What one source says of each GPU: its own settings, completed by those for all GPUs. Raises as ``by_gpu``."""
    own: dict[int, GpuShare] = {}
    for selector, share in requested.share.per_gpu:
        place = _find(selector, gpus)
        if place is None:
            if requested.lenient:
                warnings.append(f"{requested.source}: the container has no GPU {selector}")
                continue
            names = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            raise InputError(f"{requested.source}: the container has no GPU {selector}", hint=f"it gets {names}")
        if place in own:
            raise InputError(
                f"{requested.source}: GPU {selector} is named twice", hint="index and UUID mean the same GPU"
            )
        own[place] = share
    common = requested.share.default or GpuShare()
    return [filled(own.get(place, GpuShare()), common) for place in range(len(gpus))]


def tightest(shares: Sequence[GpuShare], gpu: Gpu, default: GpuShare) -> GpuShare:
    """One that gives no more than any of ``shares``, of which one that is silent gives the node's ``default``.

    A setting that only tightens (``cap``, ``idle``) counts whoever says it; one that lifts (a greater weight or
    priority, ``oversubscribe``) where all say it. Raises InputError for a part of a GPU whose memory is not known.
    """
    if len(shares) == 1:
        return shares[0]
    full = [filled(share, default) for share in shares]
    priority = min((share.priority or "normal" for share in full), key=lambda name: RANK[name])
    weight = min(share.weight or DEFAULT_WEIGHT for share in full)
    lifted = {share.oversubscribe for share in full}
    found = _memory([share for share in full if share.memory or share.memory_part], gpu).replace(
        cap=_least(share.cap for share in full),
        weight=weight if weight in {share.weight for share in full} else 0,
        priority=priority if priority in {share.priority for share in full} else "",
        oversubscribe=False if False in lifted else lifted == {True} or None,
        latency=max(share.latency or DEFAULT_LATENCY_US for share in full) if priority == SERVICE else 0,
        idle=_least(share.idle for share in full),
    )
    # What none says is the default's to say.
    silent = GpuShare()
    says_memory = any(share.memory or share.memory_part for share in shares)
    fields = ("cap", "weight", "priority", "oversubscribe", "latency", "idle")
    lost = [name for name in fields if all(getattr(share, name) == getattr(silent, name) for share in shares)]
    lost += [] if says_memory else ["memory", "memory_part", "request", "request_part"]
    return found.replace(**{name: getattr(silent, name) for name in lost})


def _memory(shares: Sequence[GpuShare], gpu: Gpu) -> GpuShare:
    """The least that is the most, and the least that is guaranteed."""
    fields = [GpuShare(share.memory, share.memory_part, 0, 0, "", None, 0, share.request, share.request_part)
              for share in shares]  # fmt: skip
    if len(set(fields)) < 2:
        return fields[0] if fields else GpuShare()
    name = f"GPU {gpu.index}"
    bounds = [(most_of(share, gpu.memory, name), request_of(share, gpu.memory, name)) for share in fields]
    most = _least(bound for bound, _ in bounds)
    request = _least(request or bound for bound, request in bounds)
    return GpuShare(most, 0 if most else WHOLE_MEMORY, request=request if request < (most or gpu.memory) else 0)


def _least(numbers: Iterable[int]) -> int:
    """Of those that are said; 0: none is."""
    return min((number for number in numbers if number), default=0)


def _find(selector: str, gpus: Sequence[Gpu]) -> int | None:
    if selector.startswith("#"):
        place = int(selector[1:])
        return place if place < len(gpus) else None
    bus_id = normalize_bus_id(selector)
    for place, gpu in enumerate(gpus):
        if selector in (str(gpu.index), gpu.uuid) or (bus_id and bus_id == gpu.bus_id):
            return place
    return None
