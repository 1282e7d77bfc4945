"""Which share a container gets: one decision for nvc-runtime, before there is a container, and for the share step.

``nvc.request.injection.ShareRequest.may_matter`` is the cheap check before this module is imported.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.share import abi, memory
from nvc.share.limits import MAX_GPUS
from nvc.share.model import CAP_WHOLE, GpuShare, Resolved, ResolvedGpu
from nvc.share.policy import MEMORY_ONLY, as_gpu_share, decide, text
from nvc.share.sources import DEFAULT, requested
from nvc.share.spec import format_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.model import DriverInfo, Selection
    from nvc.request.injection import ShareRequest
    from nvc.share.policy import Policy


def preview(
    policy: Policy,
    request: ShareRequest,
    selection: Selection | None = None,
    driver: DriverInfo | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> Resolved | None:
    """The share that a container gets by ``policy``; None: no share, inject nothing.

    selection: the container's devices. None: they are not known yet, and the answer has the source alone. An answer of
    source DEFAULT needs confirmation with the devices: the default spares MIG devices, drivers without shares, and GPUs
    that it leaves whole. Any other source gets its share of the GPUs, or the share step refuses the container.
    driver: of the machine, None where it is not known yet. warn: takes each warning.

    Raises InputError for a request that is malformed, or that these devices or this node cannot meet.
    """
    if selection is None:
        return _source(policy, request)
    resolved = decide(
        policy,
        selection.gpus,
        requested(policy, request),
        has_mig=bool(selection.migs or selection.mig_config or selection.mig_monitor),
    )
    for warning in resolved.warnings:
        warn(warning)
    if not resolved:
        return None
    if driver is not None and driver.platform:
        problem = f"shares are not for {driver.platform}: its driver is not NVIDIA's ordinary one"
        if resolved.source != DEFAULT:
            raise InputError(f"{resolved.source}: {problem}", hint="run the container without a share")
        warn(f"{problem}; the node's default is left out")
        return None
    if len(resolved.gpus) > MAX_GPUS:
        raise InputError(
            f"{resolved.source}: {len(resolved.gpus)} GPUs are too many for a share", hint=f"at most {MAX_GPUS}"
        )
    return resolved if driver is None else _held(policy, resolved, driver.nvrm_version, warn)


def _held(policy: Policy, resolved: Resolved, version: str, warn: Callable[[str], None]) -> Resolved:
    """The share as far as it is held with this version of the driver. Raises InputError."""
    if abi.knows(version):
        return resolved
    limited = [limit for gpu in resolved.gpus for limit in _timed(gpu)]
    guarded = [f"group={resolved.group}"] if resolved.group else []
    guarded += [f"mem={memory.text(as_gpu_share(gpu))}" for gpu in resolved.gpus if gpu.request]
    guarded += [f"idle={gpu.idle}s" for gpu in resolved.gpus if gpu.idle]
    lost = ", ".join(dict.fromkeys((*limited, *guarded)))
    unknown = f"driver {version} is not known ({abi.FIRST} to {abi.BEYOND - 1} are)"
    if lost and (guarded or policy.unknown_driver != MEMORY_ONLY):
        raise InputError(
            f"{resolved.source}: {lost} cannot be held: {unknown}",
            hint=f'ask for mem=10Gi alone, or set unknown-driver = "{MEMORY_ONLY}" in [share] of config.toml, which '
            "leaves cap, weight and priority out",
        )
    warn(f"{unknown}: memory is held where programs call CUDA{f', and {lost} has no effect' if lost else ''}")
    gpus = tuple(gpu.replace(cap=CAP_WHOLE, weight=0, priority="normal", latency=0) for gpu in resolved.gpus)
    return resolved.replace(gpus=gpus, text=text(gpus)) if lost else resolved


def _timed(gpu: ResolvedGpu) -> list[str]:
    """The settings of a GPU that a driver must be known for."""
    settings = GpuShare(
        cap=gpu.cap if gpu.cap != CAP_WHOLE else 0,
        weight=gpu.weight,
        priority=gpu.priority if gpu.priority != "normal" else "",
        latency=gpu.latency,
    )
    return format_gpu(settings).split(",") if settings != GpuShare() else []


def _source(policy: Policy, request: ShareRequest) -> Resolved | None:
    """What gives the container a share whose GPUs are not known; None for no share. Raises InputError."""
    found = requested(policy, request)
    default = Resolved(source=DEFAULT)
    if found is None:
        return None if policy.is_empty else default
    if found.share.off:
        return default if policy.clamp and not (policy.is_empty or policy.allow_off) else None
    return Resolved(source=found.source, group=found.share.group, requires_guard=found.share.requires_guard)
