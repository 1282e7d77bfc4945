"""Guarded containers while no agent answers: what their supervisors publish, and a change of a share.

Root writes the tenant's plan itself then. The limits file, which is changed before, is what the next agent goes by; so
it keeps the change.
"""

from __future__ import annotations

import contextlib
import time

from nvc.agent import report
from nvc.agent.state import records
from nvc.base.errors import AgentError, ContainerError, PrivilegeError, reason
from nvc.guard.channel import Connection, connect
from nvc.guard.pages import Counters
from nvc.guard.plan_file import open_plan
from nvc.guard.scheduling import EDGES, PERIOD_US, edges
from nvc.share import limits as limits_file
from nvc.share.model import CAP_WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.state.records import TenantRecord
    from nvc.agent.status import StatusTenant
    from nvc.guard.plan_file import Plan
    from nvc.share.entry import Entry
    from nvc.share.limits import Limits

#: Seconds until a change is in force: the driver may make a call of the tenant.
_IN_FORCE_SECONDS = 3.0


def tenants(directory: str) -> tuple[StatusTenant, ...]:
    """Every tenant that a supervisor answers for, without what an agent's scheduler knows. Raises PermissionError.

    directory: the agent's.
    """
    found = []
    for record in records.known(directory):
        try:
            found.append(_tenant(record, records.path(directory, record.number)))
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return tuple(found)


def _tenant(record: TenantRecord, place: str) -> StatusTenant:
    """Raises OSError, ValueError."""
    plan = open_plan(place)
    try:
        limits = limits_file.decode(plan.limits)
    finally:
        plan.close()
    counters = _counters(place, len(limits.gpus))
    try:
        return report.of(record, limits, counters.status(), counters.processes(), counters.build)
    finally:
        counters.close()


def check(directory: str, entry: Entry, after: Limits) -> None:
    """Whether caps that an entry does not have yet could be kept beside those of all tenants, by the plans in force.

    directory: the agent's. Raises ContainerError.
    """
    before = {gpu.uuid: gpu.cap for gpu in entry.limits().gpus}
    _check_services(entry.limits(), after)
    for gpu in after.gpus:
        if not 0 < gpu.cap < CAP_WHOLE or 0 < before.get(gpu.uuid, CAP_WHOLE) < CAP_WHOLE:
            continue
        periods = _periods(directory, gpu.uuid)
        needed = sum(edges(period, 1) for period in [*periods, max(periods, default=PERIOD_US)])
        if needed > EDGES:
            raise ContainerError(
                f"GPU {gpu.uuid}: its cap cannot be kept: {len(periods)} containers with a cap are there, and with one "
                f"more their plans have {needed} stops and starts a second; the driver is given {EDGES}",
                hint="start nvc-agent, which makes room for as many as there can be; or say a weight",
            )


def _check_services(before: Limits, after: Limits) -> None:
    """Raises ContainerError."""
    for old, new in zip(before.gpus, after.gpus, strict=True):
        if new.latency and (old.latency, old.priority) != (new.latency, new.priority):
            raise ContainerError(
                f"GPU {new.uuid}: no agent is there to keep the other containers' slices short for a service",
                hint="start nvc-agent, and set it again; the container must be guarded",
            )


def _periods(directory: str, uuid: str) -> list[int]:
    """Of the phases of all tenants on a GPU, in microseconds. Nothing of those that cannot be read."""
    found = []
    with contextlib.suppress(PermissionError):
        for record in records.known(directory):
            with contextlib.suppress(OSError, ValueError):
                plan = open_plan(records.path(directory, record.number))
                try:
                    gpus = limits_file.decode(plan.limits).gpus
                    phases = [plan.phase(index)[0] for index, gpu in enumerate(gpus) if gpu.uuid == uuid]
                    found += [period for period in phases if period]
                finally:
                    plan.close()
    return found


def put_in_force(directory: str, entry: Entry, after: Limits) -> bool:
    """``after`` are an entry's limits, whose lock is held. False: no supervisor guards its container.

    directory: the agent's. Memory, pause and a changed cap are in force when this returns; weight and priority, which
    need to know every other tenant, when there is an agent again. Raises AgentError, PrivilegeError.
    """
    record = entry.record
    try:
        known = records.of_entry(directory, record.key, record.container, record.pid)
    except PermissionError:
        raise PrivilegeError(f"{directory} is root's", hint="only root changes guarded containers") from None
    if known is None:
        return False
    place = records.path(directory, known.number)
    try:
        plan = open_plan(place)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise _failed(entry, error) from None
    try:
        _write(plan, after, directory)
        _wait(place, plan, len(after.gpus))
    except (OSError, ValueError) as error:
        raise _failed(entry, error) from None
    finally:
        plan.close()
    return True


def _write(plan: Plan, after: Limits, directory: str) -> None:
    """Raises OSError, ValueError."""
    before = limits_file.decode(plan.limits)
    after = limits_file.with_shares(before, after)
    plan.set_limits(limits_file.encode(after))
    for index, (old, new) in enumerate(zip(before.gpus, after.gpus, strict=True)):
        if old.cap == new.cap:
            continue
        period, since, _ = plan.phase(index)
        if not 0 < new.cap < CAP_WHOLE:
            plan.set_phase(index, 0, 0, 0)
            continue
        # Where it began is where its neighbours end: the part grows or shrinks at its end.
        period = period or max(_periods(directory, new.uuid), default=PERIOD_US)
        plan.set_phase(index, period, since, since + max(1, period * new.cap // CAP_WHOLE))


def _wait(place: str, plan: Plan, gpus: int) -> None:
    """Until the supervisor says that it took the plan. Raises OSError."""
    counters = _counters(place, gpus)
    try:
        until = time.monotonic() + _IN_FORCE_SECONDS
        while counters.generation < plan.generation:
            if time.monotonic() > until:
                raise OSError(f"its supervisor did not take it in {_IN_FORCE_SECONDS:g} s")
            time.sleep(0.005)
    finally:
        counters.close()


def _counters(place: str, gpus: int) -> Counters:
    """Of now; the caller closes them. Raises OSError."""
    connection = Connection(connect(f"{place}/monitor"))
    try:
        return Counters(connection.counters(), gpus)
    finally:
        connection.close()


def _failed(entry: Entry, error: OSError | ValueError) -> AgentError:
    why = reason(error) if isinstance(error, OSError) and error.errno else error
    return AgentError(
        f"container {entry.name[:12]}: the change is written, and not in force: {why}",
        hint="the agent puts it into force: start nvc-agent",
    )
