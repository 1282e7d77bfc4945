"""Tenants that make CUDA's checkpoint calls themselves, of their own processes: what they could gain by that."""

from __future__ import annotations

import select
import sys
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant
from tests.support.native import build
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment
from tests.system.test_suspend import Bed, in_bed, settled, used_by
from tests.system.test_suspend import machine as machine

pytestmark = pytest.mark.root

GIB = 1 << 30
CALLER = Path(__file__).with_name("programs") / "checkpoint.py"


def caller(bed: Bed, tenant: AgentTenant) -> Spoken:
    bed.programs.append(Spoken(tenant.wrap([sys.executable, str(CALLER)]), environment(bed.gpu), seconds=30))
    assert bed.programs[-1].line() == "ready"
    return bed.programs[-1]


def calls(program: Spoken, of: Spoken, *verbs: str) -> list[str]:
    return [program.ask(f"{verb} {of.process.pid}") for verb in verbs]


def test_what_it_put_away_counts_again_when_it_comes_back(machine: Path) -> None:
    """One process's memory goes to the host, another one of the tenant takes the quota, and the first wants it back."""

    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        first, second, calling = bed.program(tenant, "alloc 15000"), bed.program(tenant), caller(bed, tenant)
        before = settled(tenant)
        assert second.ask("alloc 15000") == "2"
        assert calls(calling, first, "Lock", "Checkpoint") == ["0", "0"]
        assert leftovers.until(lambda: tenant.used() < 2 * GIB, seconds=30)
        assert second.ask("alloc 15000") == "0"
        assert calls(calling, first, "Restore") != ["0"]
        assert tenant.used() < 20 * GIB
        assert second.ask("free") == "0"
        assert calls(calling, first, "Restore", "Unlock") == ["0", "0"]
        assert used_by(tenant, before)
        assert second.ask("alloc 15000") == "2"

    in_bed(machine, act)


def test_one_that_brings_itself_back_is_charged_and_off_the_gpu(machine: Path) -> None:
    """Of a tenant that the agent suspended: its share is its own meanwhile, as for a process that starts there."""

    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        first, calling = bed.program(tenant, "alloc 10000"), caller(bed, tenant)
        burn = [str(build() / "cuda_burn"), "1", "500000", "wait"]
        bed.programs.append(Spoken(tenant.wrap(burn), environment(bed.gpu), seconds=30))
        computes = bed.programs[-1]
        assert computes.line() == "ready=1"
        before = settled(tenant)
        bed.call("suspend", tenant)
        assert tenant.used() == 0
        for program in (first, computes):
            assert calls(calling, program, "Restore", "Unlock") == ["0", "0"]
        assert used_by(tenant, before)
        assert bed.status(tenant)["suspended"]
        computes.tell("")
        assert computes.line() == "started=1"
        assert not select.select([computes.process.stdout], [], [], 4.0)[0], "its work is not done"
        bed.call("resume", tenant)
        assert computes.line().startswith("finished=")
        assert (first.ask("free"), bed.status(tenant)["suspended"]) == ("0", [])

    in_bed(machine, act)
