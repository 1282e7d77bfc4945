"""Which pods have claims of this driver: what the chart's pre-delete hook asks before the driver goes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.kube.names import DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


def users(claims: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """A line for each claim that pods have: its name, its GPUs' nodes, the pods. claims: objects of the API."""
    lines = []
    for claim in claims:
        status = claim.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        pools = sorted({str(one.get("pool")) for one in results if one.get("driver") == DRIVER})
        pods = sorted(str(one.get("name")) for one in status.get("reservedFor") or ())
        if pools and pods:
            own = claim["metadata"]
            lines.append(f"{own['namespace']}/{own['name']} on {', '.join(pools)}: {', '.join(pods)}")
    return tuple(sorted(lines))
