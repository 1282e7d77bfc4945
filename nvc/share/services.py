"""What the node's rules say of services (``priority=service``, ``latency``), for ``nvc.share.policy``. Pure.

A service makes every other container of its GPU wait less long for its own turns, so none has that by asking alone:
root grants it, in its own settings or in the node's rules.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.share.model import CAP_WHOLE, DEFAULT_LATENCY_US, SERVICE, GpuShare
from nvc.share.sources import FIXED, OPTION
from nvc.share.spec import format_cap, format_latency

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.share.model import ResolvedGpu
    from nvc.share.policy import Policy


def granted(policy: Policy, said: GpuShare, source: str, warnings: list[str]) -> GpuShare:
    """Without ``service`` where nobody who may grant it has: root's own settings, or the node's rules.

    Raises InputError, or cuts it.
    """
    granted = SERVICE in (policy.default.priority, policy.maximum.priority) or source in (FIXED, OPTION)
    if said.priority != SERVICE or granted:
        return said
    problem = f"{source}: priority={SERVICE} is more than this node gives"
    if not policy.clamp:
        raise InputError(
            problem, hint=f"root grants it: priority={SERVICE} in [share] maximum of config.toml, or fixed settings"
        )
    most = policy.maximum.priority or "high"
    warnings.append(f"{problem}; it is cut to priority={most}")
    return said.replace(priority=most, latency=0)


def least(policy: Policy, source: str) -> int:
    """The shortest latency that a source may ask for, in microseconds: what the node's rules grant; 0: any."""
    for rule in (policy.maximum, policy.default if source not in (FIXED, OPTION) else GpuShare()):
        if rule.priority == SERVICE:
            return rule.latency or DEFAULT_LATENCY_US
    return 0


def latency(priority: str, wanted: int, least: int, source: str, *, said: int) -> int:
    """What a share has of it, in microseconds. said: by the source itself. Raises InputError."""
    if priority == SERVICE:
        return max(wanted or DEFAULT_LATENCY_US, least)
    if said:
        raise InputError(
            f"{source}: latency={format_latency(said)} has no effect with priority={priority}",
            hint=f"it is how long a container with priority={SERVICE} waits for others at most",
        )
    return 0


def check(gpu: ResolvedGpu, name: str, source: str) -> None:
    """Raises InputError for a service whose bound cannot be kept whatever others there are."""
    if gpu.priority == SERVICE and gpu.cap < CAP_WHOLE:
        raise InputError(
            f"{source}: latency={format_latency(gpu.latency)} cannot be kept with cap={format_cap(gpu.cap)} of {name}: "
            "a container with a cap is off the GPU for a part of every period",
            hint="leave cap out, also of the node's default and maximum: weight bounds a service's time beside others",
        )
