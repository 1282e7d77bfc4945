"""Which share a container gets: one decision for nvc-runtime, before there is a container, and for the share step.

``nvc.request.injection.ShareRequest.may_matter`` is the cheap check before this module is imported.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.share.limits import MAX_GPUS
from nvc.share.model import Resolved
from nvc.share.policy import DEFAULT, decide, requested_share

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.model import Selection
    from nvc.request.injection import ShareRequest
    from nvc.share.policy import Policy


def preview(
    policy: Policy,
    request: ShareRequest,
    selection: Selection | None = None,
    platform: str = "",
    warn: Callable[[str], None] = lambda text: None,
) -> Resolved | None:
    """The share that a container gets by ``policy``; None: no share, inject nothing.

    selection: the container's devices. None: they are not known yet, and the answer has the source alone. An answer of
    source DEFAULT needs confirmation with the devices: the default spares MIG devices, drivers without shares, and GPUs
    that it leaves whole. Any other source gets its share of the GPUs, or the share step refuses the container.
    platform: ``DriverInfo.platform``. warn: takes each warning.

    Raises InputError for a request that is malformed, or that these devices or this node cannot meet.
    """
    if selection is None:
        source = _source(policy, request)
        return Resolved(source=source) if source else None
    resolved = decide(
        policy,
        selection.gpus,
        annotation=request.annotation,
        option=request.option,
        environment=request.environment,
        has_mig=bool(selection.migs or selection.mig_config or selection.mig_monitor),
    )
    for warning in resolved.warnings:
        warn(warning)
    if not resolved:
        return None
    if platform:
        problem = f"shares are not for {platform}: its driver is not NVIDIA's ordinary one"
        if resolved.source != DEFAULT:
            raise InputError(f"{resolved.source}: {problem}", hint="run the container without a share")
        warn(f"{problem}; the node's default is left out")
        return None
    if len(resolved.gpus) > MAX_GPUS:
        raise InputError(
            f"{resolved.source}: {len(resolved.gpus)} GPUs are too many for a share", hint=f"at most {MAX_GPUS}"
        )
    return resolved


def _source(policy: Policy, request: ShareRequest) -> str:
    """What gives the container a share whose GPUs are not known; "" for no share. Raises InputError."""
    requested = requested_share(
        policy, annotation=request.annotation, option=request.option, environment=request.environment
    )
    if requested is None:
        return "" if policy.is_empty else DEFAULT
    if requested.share.off:
        return DEFAULT if policy.clamp and not (policy.is_empty or policy.allow_off) else ""
    return requested.source
