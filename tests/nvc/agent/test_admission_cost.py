"""What the agent does for a container that starts: no more with more parts, or beside more tenants."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nvc.agent.accounting import Accounting
from nvc.agent.claims import Claims
from nvc.agent.part import Part
from nvc.agent.probing import Probing
from nvc.agent.ranges import Ranges
from nvc.agent.state.records import TenantRecord
from nvc.agent.tenant import Tenant
from nvc.share import limits as limits_file
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from tests.support import leftovers
from tests.support.admitted import AdmittedContainers, look

UUID = "GPU-11111111-2222-3333-4444-555555555555"
#: Names of files that were opened.
OPENED: list[str] = []


def _opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        OPENED.append(str(arguments[0]))


sys.addaudithook(_opened)


def _limits_opened(path: Path, parts: int) -> int:
    """How often the files of limits were opened while a container was admitted."""
    path.mkdir()
    read, write = os.pipe()
    with AdmittedContainers(path) as place:
        place.tenants._parts.extend(Part() for _ in range(parts))
        OPENED.clear()
        assert place.admit(read)
        count = OPENED.count("limits")
    os.close(read)
    os.close(write)
    return count


def test_its_limits_are_read_once_for_all_parts(tmp_path: Path) -> None:
    """Ten times before: each of nine parts had them read. Then twice: before and after room was made."""
    assert _limits_opened(tmp_path / "one", 1) == _limits_opened(tmp_path / "many", 9) == 1


def test_limits_that_the_plan_has_are_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look that follows an admission reads them: a change may have come before their file was watched."""
    decoded: list[bytes] = []

    def decode(content: bytes) -> Limits:
        decoded.append(content)
        return usual(content)

    usual = limits_file.decode
    monkeypatch.setattr(limits_file, "decode", decode)
    read, write = os.pipe()
    with AdmittedContainers(tmp_path) as place:
        assert place.admit(read)
        (tenant,) = place.tenants
        asyncio.run(look(place.tenants, place.supervisors))
        assert len(decoded) == 1, "where it was admitted"
        place.set(memory=2 << 30)

        def is_taken_up() -> bool:
            asyncio.run(look(place.tenants, place.supervisors))
            return tenant.limits.gpus[0].memory == 2 << 30

        assert leftovers.until(is_taken_up, seconds=30)
        assert limits_file.decode(place.supervisors.limits(1)).gpus[0].memory == 2 << 30
        # A change that could not be taken at once is in the plan, and not in force for the agent yet.
        tenant.is_planned, before = False, len(decoded)
        place.set(memory=3 << 30)
        place.supervisors._tenant(1).plan.set_limits(limits_file.encode(place.limits))
        tries = 1
        while not place.tenants.refresh(tenant):  # a busy machine's supervisor has the plan's lock
            tries += 1
            assert tries < 1000
        assert (tenant.limits.gpus[0].memory, len(decoded)) == (3 << 30, before + tries)
    os.close(read)
    os.close(write)


class Counted(list[Tenant]):
    """How often the tenants were gone through."""

    looked = 0

    def __iter__(self) -> Iterator[Tenant]:
        self.looked += 1
        return super().__iter__()


def _tenant(number: int, *, request: int = 0, idle: int = 0) -> Tenant:
    gpu = ResolvedGpu(UUID, 0, 10, request=request, most=20 if request else 0, idle=idle)
    return Tenant(TenantRecord(number, str(number), str(number), 0, 0, 0.0), Limits((gpu,), (), "1", str(number)))


def test_gpus_of_shares_that_move_are_known_without_a_look_at_all_tenants() -> None:
    tenants = Counted([_tenant(1), _tenant(2, request=5)])
    agent: Any = SimpleNamespace(tenants=tenants)
    idleness: Any = SimpleNamespace()
    claims = Claims(agent, idleness)  # those that were taken over
    tenants.looked = 0

    assert claims.uuids() == [UUID]
    changed = _tenant(2)
    claims.follow(changed)
    assert claims.uuids() == []
    claims.follow(_tenant(3, idle=60))
    assert claims.uuids() == [UUID]
    claims.gone(_tenant(3, idle=60))
    assert claims.uuids() == []
    claims.coming["4"] = _tenant(4, request=5).limits
    assert claims.uuids() == [UUID]
    assert tenants.looked == 0


def _ranges(tenants: list[Tenant]) -> Ranges:
    agent: Any = SimpleNamespace(tenants=tenants)
    made = Ranges(*(cast("Any", SimpleNamespace()) for _ in range(2)))
    made._agent, made._claims = agent, Claims(agent, cast("Any", SimpleNamespace()))
    return made


def test_without_a_share_that_moves_a_container_takes_no_look_at_the_others() -> None:
    """Each that came, changed or went had all tenants gone through, for those that are to be resumed."""
    part = _ranges([])
    for act in (part.added, part.changed, part.gone):
        act(_tenant(1))
        assert not part._due.is_set()
    part.added(_tenant(2, request=5))
    assert part._due.is_set()


def test_what_a_container_was_promised_is_forgotten_when_it_is_a_tenant() -> None:
    """It was ten seconds later: until then each question went through all that had started."""
    part, one, other = _ranges([]), _tenant(1, request=5), _tenant(2, request=6)
    part._claims.coming = {"1": one.limits, "2": _tenant(2, request=6).limits}
    part.added(one)
    part.added(other)
    assert list(part._claims.coming) == ["2"], "another container of its name waits"


def test_a_tenant_that_comes_is_not_read_before_it_has_anything() -> None:
    """Its counters for what it used, its prober's state: a dozen system calls."""
    accounting, probing, told = Accounting(), Probing(), list[int]()
    accounting._agent = cast("Any", SimpleNamespace())
    accounting.added(_tenant(1))
    assert accounting._running[1, UUID].memory == 0
    probing._prober = cast("Any", SimpleNamespace(tenant=lambda number, uuids: told.append(number)))
    probing.added(_tenant(1))
    assert told == [1]
