"""Memory, and files of the driver, that guarded processes hand on by descriptors, on the real driver."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.support.agentbed import RunningAgent
from tests.support.attacks import SOURCES
from tests.support.bed import Bed
from tests.support.guarded import GuardedTenant, Guarding
from tests.support.lending import MIB, NO_MEMORY, SIZE, between_tenants, lent, within_tenant
from tests.support.passing import GIVEN, REFUSED, giver, got, is_refused, passed, sidecar, volume_of
from tests.support.runtimes import OciRuntime
from tests.support.share_table import Table
from tests.support.spoken import Spoken
from tests.support.tenants import build_static
from tests.support.wrapped import Wrapped

pytestmark = [pytest.mark.gpu, pytest.mark.system]

#: The driver's own of a process, and continued calls that are not confirmed yet.
PIECE, ROOM = SIZE // MIB, 64
Start = Callable[..., Spoken]


@pytest.fixture
def lending(bed: Bed, environment: dict[str, str]) -> Start:
    """Starts the program with the attacks in a tenant."""
    program = bed.directory("attacks") / "attack"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-static", "-pthread", "-o", str(program)]
    subprocess.run([*command, *map(str, SOURCES)], check=True)

    def start(tenant: GuardedTenant, *words: str) -> Spoken:
        return Spoken(tenant.wrap([str(program), *words]), environment, seconds=20)

    return start


def _near(charged: dict[str, int], expected: dict[str, int]) -> bool:
    return charged.keys() == expected.keys() and all(0 <= charged[key] - expected[key] < ROOM for key in expected)


def test_an_import_from_another_tenant_is_charged_until_nothing_holds_it(
    bed: Bed, guarding: Guarding, lending: Start, table: Table
) -> None:
    lender, borrower = guarding.tenant(memory=2 * SIZE), guarding.tenant(memory=SIZE + ROOM * MIB)
    charged = between_tenants(lending, bed.directory("lent"), lender, borrower)
    expected = {"status": 0, "imported": PIECE, "freed": PIECE, "lender ended": PIECE, "end": 0}
    good = _near(charged, expected)
    table.add(
        "1 GiB of another tenant's imported by descriptor, mapped in UVM, freed",
        goal="the importer's, until its process ends",
        got=str(charged),
        good=good,
    )
    assert good, charged


def test_an_import_beyond_the_quota_is_refused(bed: Bed, guarding: Guarding, lending: Start, table: Table) -> None:
    lender, borrower = guarding.tenant(memory=2 * SIZE), guarding.tenant(memory=SIZE // 2)
    one, other, status = lent(lending, bed.directory("lent"), lender, borrower)
    used = borrower.used() // MIB
    other.kill()
    one.kill()
    good = status == NO_MEMORY and used < ROOM and lender.empty() and borrower.empty()
    table.add(
        "the same with a quota of 512 MiB", goal="refused, 0x51", got=f"{status:#x}, charged {used} MiB", good=good
    )
    assert good


def test_an_import_within_a_tenant_is_charged_once(bed: Bed, guarding: Guarding, lending: Start, table: Table) -> None:
    charged = within_tenant(lending, bed.directory("lent"), guarding.tenant(memory=SIZE + ROOM * MIB))
    good = _near(charged, {"status": 0, "imported": PIECE, "exporter freed": PIECE, "end": 0})
    table.add("1 GiB imported by another process of the tenant", goal="charged once", got=str(charged), good=good)
    assert good, charged


def test_another_containers_file_is_good_for_nothing(
    bed: Bed, guarding: Guarding, lending: Start, table: Table
) -> None:
    giver, taker = guarding.tenant(memory=2 * SIZE), guarding.tenant(memory=2 * SIZE)
    got, own = passed(lending, bed.directory("passed"), giver, taker)
    counted = taker.refused().get("foreign-file", 0)
    empty = giver.empty() and taker.empty()
    good = got == REFUSED and counted == len(REFUSED) - 1 and own == {"group": 0, "memory": 0, "ready": 1, "freed": 0}
    table.add(
        "files of the control node and of UVM passed to another container",
        goal="each call refused (EACCES, foreign-file), the owner's calls as before, nothing stays",
        got=f"{got}; counted {counted}; the owner {own}; nothing stays: {empty}",
        good=good and empty,
    )
    assert good and empty


def test_a_container_without_a_gpu_gets_nothing_by_another_ones_file(
    bed: Bed, native: OciRuntime, table: Table
) -> None:
    tree, found = bed.rootfs(), {}
    build_static(SOURCES[0], tree / "usr/bin/attack", *map(str, SOURCES[1:]))
    with RunningAgent(bed, "") as agent:
        wrapped = Wrapped(bed, native, agent.settings, machine="")
        for way in ("runtime", "nvc-runtime"):
            volume = volume_of(bed)
            with giver(wrapped, tree, volume, "mem=4Gi") as given:
                assert [given.line() for _ in GIVEN] == GIVEN
                container = sidecar(tree, volume)
                found[way] = got(bed.run(native, container) if way == "runtime" else wrapped.run(container))
    good = is_refused(found["nvc-runtime"]) and not is_refused(found["runtime"])
    table.add("files of a guarded container in one without a GPU", goal="nothing", got=str(found), good=good)
    assert good, found
