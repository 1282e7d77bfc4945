"""Whether what a source says is within the node's maximum ([share] maximum), for ``nvc.share.policy``. Pure."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.share import services
from nvc.share.memory import most_of, request_of
from nvc.share.model import RANK, GpuShare
from nvc.share.spec import format_cap, format_gpu, format_latency, format_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.share.policy import Policy


def check(policy: Policy, total: int, gpu: str, said: GpuShare, source: str, warnings: list[str]) -> None:
    """Whether what was said is within the maximum. Raises InputError, or appends a warning where it is cut."""
    maximum = policy.maximum
    too_much = []
    if said.memory or said.memory_part:
        most, wanted = (most_of(one, total, gpu) for one in (maximum, said))
        bound, request = (request_of(one, total, gpu) for one in (maximum, said))
        setting = format_gpu(
            GpuShare(said.memory, said.memory_part, request=said.request, request_part=said.request_part)
        )
        if most and (not wanted or wanted > most):
            too_much.append((setting, f"mem={format_memory(most)} of {gpu}"))
        elif bound and (not (request or wanted) or (request or wanted) > bound):
            too_much.append((setting, f"a request of {format_memory(bound)} of {gpu}"))
    if maximum.cap and said.cap > maximum.cap:
        too_much.append((f"cap={format_cap(said.cap)}", f"cap={format_cap(maximum.cap)}"))
    if maximum.weight and said.weight > maximum.weight:
        too_much.append((f"weight={said.weight}", f"weight={maximum.weight}"))
    if maximum.priority and said.priority and RANK[said.priority] > RANK[maximum.priority]:
        too_much.append((f"priority={said.priority}", f"priority={maximum.priority}"))
    if 0 < maximum.idle < said.idle:
        too_much.append((f"idle={said.idle}s", f"idle={maximum.idle}s"))
    least = services.least(policy, source)
    if 0 < said.latency < least:
        too_much.append((f"latency={format_latency(said.latency)}", f"latency={format_latency(least)}"))
    if maximum.oversubscribe is False and said.oversubscribe:
        too_much.append(("oversubscribe=on", "oversubscribe=off"))
    for setting, limit in too_much:
        if not policy.clamp:
            raise InputError(
                f"{source}: {setting} is more than this node gives", hint=f"at most {limit} ([share] maximum)"
            )
        warnings.append(f"{source}: {setting} is more than this node gives; it is cut to {limit}")
