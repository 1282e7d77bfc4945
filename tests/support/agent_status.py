"""Statuses for tests: what an agent says of two GPUs and their tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nvc.agent.status import AgentStatus, StatusGpu, StatusTenant, TenantGpu, TenantProcess

UUIDS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in (1, 2))
GIB = 1 << 30


def share(uuid: str = UUIDS[0], **changes: object) -> TenantGpu:
    return TenantGpu(
        uuid, 10 * GIB, 4 * GIB, GIB, 4 * GIB, 500, 20, "normal", 0.5, 0.48, 2, 5000, False, 3_000_000_000
    ).replace(**changes)


def tenant(number: int = 1, **changes: object) -> StatusTenant:
    processes = (TenantProcess(4711, (3 * GIB,)), TenantProcess(4712, (GIB,)))
    return StatusTenant(
        *(number, f"c{number:011d}", 4711, "guard", 1_700_000_000.0, (share(),), processes),
        *({"over-quota": 3}, 1000, 25_000_000, False),
    ).replace(**changes)


def status(*tenants: StatusTenant) -> AgentStatus:
    gpus = tuple(StatusGpu(uuid, minor, 80 * GIB, "weighted") for minor, uuid in enumerate(UUIDS))
    return AgentStatus("1.2", "weighted", gpus, tenants)


def saying(*answers: AgentStatus) -> Callable[[dict[str, Any]], Iterator[dict[str, Any]]]:
    """Answers one status after another, the last one for ever."""
    left = list(answers)

    def answer(_: dict[str, Any]) -> Iterator[dict[str, Any]]:
        said = left.pop(0) if len(left) > 1 else left[0]
        yield {"ok": True, **said.as_data()}

    return answer
