"""``mem=8Gi..40Gi`` under the agent: limits move, requests are kept, and memory above a request is reclaimed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment
from tests.system.test_suspend import PROGRAM, Bed, in_bed, settled
from tests.system.test_suspend import machine as machine

pytestmark = pytest.mark.root

GIB = 1 << 30
#: What the GPU has beside the tenants' requests is about 140 GiB.
WHOLE = 139


def ranged(bed: Bed, request: int, most: int, **more: str) -> AgentTenant:
    return bed.agent.tenant(memory=request * GIB, request=request * GIB, most=most * GIB, **more)


def limit(bed: Bed, tenant: AgentTenant) -> int:
    """In force, in GiB."""
    return int(bed.status(tenant)["gpus"][0]["limit"]) // GIB


def allocated(program: Spoken, gib: int) -> bool:
    """GiB for GiB, as a framework does."""
    return all(program.ask("alloc 1024") == "0" for _ in range(gib))


def suspended(bed: Bed, tenant: AgentTenant) -> bool:
    return bool(bed.status(tenant)["suspended"])


def until_limit(bed: Bed, tenant: AgentTenant, least: int) -> bool:
    return leftovers.until(lambda: limit(bed, tenant) >= least, seconds=30)


def test_a_limit_moves_to_where_memory_is_wanted(machine: Path) -> None:
    """And never into what another was promised, which is there at once."""

    def act(bed: Bed) -> None:
        one, other = ranged(bed, 8, 120), ranged(bed, 40, 120)
        first, second = bed.program(one), bed.program(other)
        assert until_limit(bed, one, 40)
        assert limit(bed, one) + limit(bed, other) <= WHOLE + 1
        assert allocated(first, 38)
        assert leftovers.until(lambda: first.ask("alloc 30000") == "0", seconds=30), "it wanted more, and was given it"
        taken = 0
        while first.ask("alloc 1024") == "0" or not leftovers.until(lambda: first.ask("alloc 1024") != "0", seconds=2):
            taken += 1
            assert taken < 100
        assert allocated(second, 39), "its request, while the first has all that was to be had"
        assert not suspended(bed, one)
        assert first.ask("free") == "0"
        assert until_limit(bed, other, 80)
        assert allocated(second, 40)

    in_bed(machine, act)


def test_requests_are_kept_while_no_agent_is_there(machine: Path) -> None:
    """One tenant has all that its limit allows; the other one's request is there."""

    def act(bed: Bed) -> None:
        one, other = ranged(bed, 8, 120), ranged(bed, 60, 120)
        first, second = bed.program(one), bed.program(other)
        assert until_limit(bed, one, 30)
        bed.agent.process.kill()
        bed.agent.process.wait()
        while first.ask("alloc 1024") == "0":
            pass
        assert allocated(second, 59)
        bed.agent.process = bed.agent._start()
        assert bed.agent.ready()
        assert second.ask("free") == "0"
        assert leftovers.until(lambda: first.ask("alloc 1024") == "0", seconds=30)

    in_bed(machine, act)


def test_memory_above_a_request_is_reclaimed_for_a_container_that_starts(machine: Path) -> None:
    """The lowest priority gives way; it comes back with what it had when there is room."""

    def act(bed: Bed) -> None:
        low = ranged(bed, 8, 70, priority="low")
        high = ranged(bed, 8, 50, priority="high")
        first, second = bed.program(low), bed.program(high)
        assert until_limit(bed, low, 60)
        assert allocated(first, 60)
        assert first.ask("fill 77") == "0"
        assert leftovers.until(lambda: allocated(second, 40), seconds=1)
        third = bed.agent.tenant(memory=70 * GIB)
        program = bed.program(third)
        assert suspended(bed, low)
        assert not suspended(bed, high)
        assert limit(bed, low) == 8, "what starts in it meanwhile has its request"
        assert allocated(program, 69), "what it was promised is there at once"
        time.sleep(3)
        assert suspended(bed, low)
        with pytest.raises(ContainerError, match=r"needs .* MiB"):
            bed.call("resume", low)
        program.kill()
        assert leftovers.until(lambda: not suspended(bed, low), seconds=20)
        assert first.ask("peek") == "77"
        assert allocated(first, 1)

    in_bed(machine, act)


def test_a_tenant_within_its_request_is_not_suspended(machine: Path) -> None:
    """Nor is one without a range: the container that asks for their memory does not start, and its error says why."""

    def act(bed: Bed) -> None:
        one, other = ranged(bed, 60, 100), bed.agent.tenant(memory=60 * GIB)
        first, second = bed.program(one, "alloc 50000"), bed.program(other, "alloc 50000")
        before = settled(one)
        third = bed.agent.tenant(memory=40 * GIB)
        started = Spoken(third.wrap([sys.executable, str(PROGRAM)]), environment(bed.gpu))
        bed.programs.append(started)
        assert started.process.wait(30) != 0, "it is ended before it has its first answer"
        why = "no container has memory above its request there"
        assert leftovers.until(lambda: why in bed.agent.log.read_text(), seconds=30)
        assert not suspended(bed, one)
        assert one.used() == before
        assert (first.ask("free"), second.ask("free")) == ("0", "0")

    in_bed(machine, act)


def test_an_agent_that_ends_while_it_reclaims_goes_on_with_the_next(machine: Path) -> None:
    def act(bed: Bed) -> None:
        one = ranged(bed, 8, 120)
        first = bed.program(one)
        assert until_limit(bed, one, 110)
        assert allocated(first, 100)
        second = bed.agent.tenant(memory=100 * GIB)
        starts = Spoken(second.wrap([sys.executable, str(PROGRAM)]), environment(bed.gpu))
        bed.programs.append(starts)
        assert leftovers.until(lambda: suspended(bed, one), seconds=20)
        bed.agent.kill()
        assert starts.line() == "ready"
        assert suspended(bed, one)
        assert allocated(starts, 99)
        starts.kill()
        assert leftovers.until(lambda: not suspended(bed, one), seconds=30)
        assert first.ask("free") == "0"

    in_bed(machine, act)


def test_share_set_changes_a_range(machine: Path) -> None:
    def act(bed: Bed) -> None:
        one = ranged(bed, 8, 40)
        bed.program(one)
        bed.call("set", one, spec="mem=20Gi..60Gi")
        gpu = bed.status(one)["gpus"][0]
        assert (gpu["request"], gpu["most"]) == (20 * GIB, 60 * GIB)
        assert until_limit(bed, one, 60)
        bed.call("set", one, spec="mem=15Gi")
        assert (limit(bed, one), bed.status(one)["gpus"][0]["request"]) == (15, 0)

    in_bed(machine, act)
