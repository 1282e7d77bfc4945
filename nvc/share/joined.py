"""The limits after several share steps of one start: nvc-hook, the hooks of CDI specifications, a command. Pure.

Each step knows the GPUs that its own request named and no others, and some requests are the tenant's. So a later step
adds and tightens; ``nvc-py share set`` is what gives a running container more.
"""

from __future__ import annotations

from nvc.share.model import RANK, SERVICE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.share.limits import Limits
    from nvc.share.model import ResolvedGpu


def joined(before: Limits, later: Limits) -> Limits:
    """Every GPU and node of both, a GPU of both with the tighter of its settings; all else is as ``later`` has it."""
    known, named = ({gpu.uuid: gpu for gpu in limits.gpus} for limits in (before, later))
    gpus = [_tighter(gpu, named[uuid]) if uuid in named else gpu for uuid, gpu in known.items()]
    gpus += [gpu for uuid, gpu in named.items() if uuid not in known]
    # The order of the GPUs stays: processes count by it.
    nodes = dict.fromkeys((*before.nodes, *later.nodes))
    return later.replace(gpus=tuple(gpus), nodes=tuple(nodes), paused=before.paused)


def _tighter(before: ResolvedGpu, later: ResolvedGpu) -> ResolvedGpu:
    priority = min((before.priority, later.priority), key=lambda word: RANK[word])
    # A range of one step, and what another step allows at most: less of both is guaranteed, less of both allowed.
    request, most = (_lower(_request(before), _request(later)), _lower(_most(before), _most(later)))
    has_range = request != most and bool(before.request or later.request)
    return later.replace(
        memory=request,
        request=request if has_range else 0,
        most=most if has_range else 0,
        cap=min(before.cap, later.cap),
        weight=_lower(before.weight, later.weight),
        priority=priority,
        oversubscribe=before.oversubscribe and later.oversubscribe,
        idle=_lower(before.idle, later.idle),
        latency=max(before.latency, later.latency) if priority == SERVICE else 0,
    )


def _request(gpu: ResolvedGpu) -> int:
    return gpu.request or gpu.memory


def _most(gpu: ResolvedGpu) -> int:
    return gpu.most or gpu.memory


def _lower(before: int, later: int) -> int:
    # 0 says nothing.
    return min(before or later, later or before)
