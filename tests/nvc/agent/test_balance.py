"""The node balance of a GPU: what is in use, and what is not explained (nvc.agent.balance); where it is shown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.agent import owners as under_test
from nvc.agent.balance import ACT_NS, PER_PROCESS, SAY_NS, TOLERANCE, Balance, Finding, Sight
from nvc.agent.metrics.exposition import text
from nvc.agent.owners import Owners
from nvc.agent.probing import IDLE_S, Probing
from nvc.agent.state import records
from nvc.agent.state.records import Member, TenantRecord
from nvc.agent.status import AgentStatus, StatusGpu
from nvc.agent.tenant import Tenant
from nvc.agent.view import collect
from nvc.cli.top.text import picture
from nvc.guard.supervisors import USERS
from nvc.guard.usage import GpuUsage
from nvc.share.limits import Limits
from nvc.share.store import start_time
from tests.support import leftovers

MIB, GIB = 1 << 20, 1 << 30
UUID = "GPU-11111111-2222-3333-4444-555555555555"
#: What a GPU has in use without anything.
IDLE = 500 * MIB


class Gpu:
    """A GPU and its balance; an answer of the driver each half second."""

    def __init__(self, *, idle: bool = True) -> None:
        self.balance, self.now = Balance(), 10**12
        #: Tenant -> (charged, reported, notifications, continued).
        self.tenants: dict[int, tuple[int, int, int, int]] = {}
        self.outside, self.hidden = 0, 0
        if idle:
            assert self.look() == Finding(0, TOLERANCE)

    def look(self, times: int = 1) -> Finding:
        for _ in range(times):
            self.now += 500_000_000
            used = IDLE + self.outside + self.hidden + sum(one[0] for one in self.tenants.values())
            sights = [
                Sight(number, charged, {number: reported} if reported else {}, calls, continued, True)
                for number, (charged, reported, calls, continued) in self.tenants.items()
            ]
            gpu = GpuUsage(UUID, self.now, used, 80 * GIB, IDLE, {})
            found = self.balance.update(gpu, sights, {99: self.outside} if self.outside else {})
        return found


def test_what_is_charged_or_of_the_host_is_explained() -> None:
    gpu = Gpu()
    gpu.tenants = {1: (2 * GIB, 2 * GIB, 5, 1), 2: (GIB, GIB, 5, 0)}
    gpu.outside = 7 * GIB
    assert gpu.look(5) == Finding(0, TOLERANCE + 3 * PER_PROCESS)


def test_an_excess_is_said_after_a_second_and_certain_where_there_is_one_container() -> None:
    gpu = Gpu()
    gpu.tenants[1] = 2 * GIB, 2 * GIB, 5, 1
    gpu.look()
    gpu.hidden = TOLERANCE + PER_PROCESS
    assert gpu.look(4).lasts_ns == 0, "so much may be"
    gpu.hidden += 1
    assert not gpu.look().is_said and not gpu.look(2).is_said
    found = gpu.look()
    assert found.lasts_ns > SAY_NS and (found.tenant, found.is_certain, found.is_acted_upon) == (1, True, False)
    found = gpu.look(4)
    assert found.lasts_ns > ACT_NS and found.is_acted_upon
    gpu.hidden = 0
    assert gpu.look().lasts_ns == 0


def test_a_process_of_the_host_may_have_it() -> None:
    gpu = Gpu()
    gpu.tenants[1] = 2 * GIB, 2 * GIB, 5, 1
    gpu.outside, gpu.hidden = GIB, GIB
    found = gpu.look(9)
    assert found.is_said and not found.is_certain and not found.is_acted_upon


def test_the_driver_s_word_about_its_processes_is_certain() -> None:
    gpu = Gpu()
    gpu.tenants = {1: (GIB, GIB, 5, 0), 2: (GIB, 3 * GIB, 5, 0)}
    gpu.hidden = 2 * GIB
    found = gpu.look(9)
    assert (found.tenant, found.is_acted_upon) == (2, True)


def test_a_neighbour_that_frees_at_the_wrong_moment_is_not_certain() -> None:
    """What one has is said already; what the other one frees was reported, and is charged at no look."""
    gpu = Gpu()
    gpu.tenants = dict.fromkeys((1, 2), (GIB, GIB, 5, 0))
    gpu.look(2)
    gpu.tenants[1], gpu.hidden = (GIB, GIB, 900, 0), GIB  # page tables
    assert gpu.look(9).lasts_ns > ACT_NS
    for round_ in range(6):
        gpu.tenants[2], gpu.hidden = (GIB, 3 * GIB, 50 + round_, 0), 3 * GIB
        assert not gpu.look().is_certain
        gpu.tenants[2], gpu.hidden = (GIB, GIB, 50 + round_, 0), GIB
        assert not gpu.look().is_certain


def test_what_is_reported_beyond_the_charge_for_long_is_certain_whatever_was_before() -> None:
    gpu = Gpu()
    gpu.tenants = dict.fromkeys((1, 2), (GIB, GIB, 5, 0))
    gpu.look(2)
    gpu.hidden = GIB
    assert not gpu.look(9).is_certain
    gpu.tenants[2], gpu.hidden = (GIB, 2 * GIB, 5, 0), 2 * GIB
    assert not gpu.look(5).is_certain
    found = gpu.look(3)
    assert (found.tenant, found.is_acted_upon) == (2, True)


def test_what_another_one_left_is_not_certain_to_be_the_last_one_s() -> None:
    gpu = Gpu()
    gpu.tenants = dict.fromkeys((1, 2), (GIB, GIB, 5, 0))
    gpu.look(2)
    gpu.hidden = GIB
    gpu.look(2)
    del gpu.tenants[1]
    found = gpu.look(9)
    assert found.is_said and not found.is_certain


def test_the_one_that_made_calls_is_likely_and_continued_calls_come_first() -> None:
    gpu = Gpu()
    gpu.tenants = dict.fromkeys((1, 2, 3), (GIB, GIB, 5, 0))
    gpu.look(4)
    gpu.tenants[1], gpu.tenants[3] = (GIB, GIB, 900, 0), (GIB, GIB, 7, 2)
    gpu.hidden = GIB
    found = gpu.look(4)
    assert (found.tenant, found.is_said, found.is_certain) == (3, True, False)


def test_none_is_named_where_none_made_a_call() -> None:
    gpu = Gpu()
    gpu.tenants = dict.fromkeys((1, 2), (GIB, GIB, 5, 0))
    gpu.look(4)
    gpu.hidden = GIB
    found = gpu.look(9)
    assert (found.tenant, found.is_said, found.is_certain) == (0, True, False)


def test_a_neighbour_that_makes_calls_afterwards_is_not_named() -> None:
    gpu = Gpu()
    gpu.tenants = dict.fromkeys((1, 2), (GIB, GIB, 5, 0))
    gpu.look(4)
    gpu.tenants[1], gpu.hidden = (GIB, GIB, 60, 9), GIB
    assert gpu.look(4).tenant == 1
    for calls in range(100, 200, 10):
        gpu.tenants[2] = GIB, GIB, calls, calls
        assert gpu.look().tenant == 1


def test_a_tenant_that_allocates_and_frees_all_the_time_is_not_found() -> None:
    """Its ledger is read some time after the driver was asked."""
    gpu = Gpu()
    gpu.tenants = {1: (0, 0, 0, 0)}
    for round_ in range(50):
        lag = 2 * GIB if round_ % 2 else 0
        gpu.tenants[1] = 2 * GIB - lag, 2 * GIB - lag, 10 * round_, 0
        gpu.hidden = lag
        assert not gpu.look().is_said


def test_what_a_tenant_holds_that_is_charged_nothing_is_not_idle() -> None:
    gpu = Gpu()
    gpu.tenants[1] = 0, 0, 50, 5
    gpu.hidden = GIB
    found = gpu.look(4)
    assert (found.unaccounted, found.tenant, found.is_certain) == (GIB, 1, True)


def test_what_was_there_before_is_not_found_by_an_agent_that_starts_later() -> None:
    gpu = Gpu(idle=False)
    gpu.tenants[1] = 2 * GIB, 2 * GIB, 5, 1
    assert gpu.look(5).unaccounted == 0, "the prober knows what was idle"
    gpu.hidden = GIB
    assert gpu.look(5).unaccounted == GIB


# Where it is shown.


def test_a_red_line_in_top_and_a_metric() -> None:
    gpu = StatusGpu(UUID, 0, 80 * GIB, "weighted", 3 * GIB, True, "0123456789abcdef")
    status = AgentStatus("1", "weighted", (gpu,), ())
    lines = picture(collect(status, (), 0.0), 120)
    (line,) = [line for line in lines if "accounted" in line.plain]
    assert (line.plain, line.style) == ("    3072Mi in use are not accounted for, by 0123456789ab", "red")
    page = text(status)[0].decode()
    assert f'nvc_gpu_unaccounted_bytes{{gpu="{UUID}"}} 3221225472' in page
    assert f'nvc_gpu_unbalanced{{gpu="{UUID}"}} 1.0' in page
    calm = AgentStatus("1", "weighted", (gpu.replace(is_unbalanced=False, unaccounted_by=""),), ())
    assert not [line for line in picture(collect(calm, (), 0.0), 120) if "accounted" in line.plain]


# Whose a process is.


@pytest.fixture
def container() -> Iterator[int]:
    """The first process of a pid namespace, with a child in a namespace below it."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "unshare --pid --fork sleep 301 & sleep 300"]
    with subprocess.Popen(words, start_new_session=True) as made:
        place = Path(f"/proc/{made.pid}/task/{made.pid}/children")
        assert leftovers.until(lambda: len(place.read_text().split()) == 1, seconds=20)
        yield int(place.read_text())
        made.kill()


def below(pid: int) -> list[int]:
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(one for child in children for one in below(child))]


@pytest.mark.root
def test_processes_are_known_by_the_kernel_s_word(
    container: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(tmp_path / "agent")
    records.prepare(directory)
    tenants = [
        Tenant(TenantRecord(7, "one", "one", container, start_time(container), 0.0), Limits((), (), "1", "one")),
        Tenant(TenantRecord(8, "two", "two", os.getpid(), start_time(os.getpid()), 0.0), Limits((), (), "1", "two")),
    ]
    owners = Owners(directory, USERS)
    assert leftovers.until(lambda: len(below(container)) == 4, seconds=20)
    inside = below(container)
    supervisor = subprocess.Popen(["sleep", "300"], user=USERS + 8)
    try:
        found = owners.of([*inside, supervisor.pid, os.getpid(), 1], tenants, {os.getpid(): 8, inside[1]: 8})
        assert (owners.knows(tenants[0]), owners.knows(tenants[1])) == (True, False)
        assert found == {**dict.fromkeys(inside, 7), supervisor.pid: 8, os.getpid(): 8, 1: 0}
        # Root in a container takes the uid of another tenant's supervisor.
        monkeypatch.setattr(under_test, "_user", lambda pid: USERS + 8)
        assert set(Owners(directory, USERS).of(inside, tenants, {}).values()) == {7}
        owners.gone(7)
        assert set(owners.of(inside, tenants[1:], {}).values()) == {0}
    finally:
        supervisor.kill()
        supervisor.wait()


def test_clients_of_a_process_that_ended_stay_its_tenant_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child goes on with them; its tenant makes processes until a neighbour's has the number."""
    directory = str(tmp_path / "agent")
    records.prepare(directory)
    tenants = []
    for number, name in ((7, "a"), (8, "b")):
        place = Path(records.path(directory, number))
        place.mkdir()
        (place / "cgroup").write_text(f"1 /sys/fs/cgroup/{name}/cgroup.kill\n")
        tenants.append(Tenant(TenantRecord(number, name, name, 0, 0, 0.0), Limits((), (), "1", name)))
    groups, started = {11: "/a"}, {1: 1, 11: 100}
    monkeypatch.setattr(under_test, "_cgroup", lambda pid: groups.get(pid, ""))
    monkeypatch.setattr(under_test, "start_time", lambda pid: started.get(pid, -1))
    owners = Owners(directory, USERS)

    def clients(uuid: str, *pids: int) -> dict[int, int]:
        return owners.of_clients(uuid, owners.of(pids, tenants, {13: 8}))

    assert clients(UUID, 11, 12, 13) == {11: 7, 12: 0, 13: 8}
    del groups[11], started[11]
    assert clients("another GPU", 12) == {12: 0}
    assert owners.of((1, 12), tenants, {}, {1: 8, 12: 8}) == {1: 0, 12: 8}, "what its supervisor says, as it has ended"
    assert clients(UUID, 11) == {11: 7}, "it has ended"
    groups.update({11: "/b", 13: "/a"})
    started.update({11: 200, 13: 200})
    assert clients(UUID, 11, 13) == {11: 7, 13: 7}, "a neighbour has its number; a supervisor's word is no more"
    assert clients(UUID, 12) == {12: 0}
    assert clients(UUID, 11) == {11: 8}, "the driver had none under it meanwhile"
    clients(UUID, 13)
    owners.gone(7)
    assert owners.of_clients(UUID, owners.of((13,), tenants[1:], {})) == {13: 0}


def test_a_gpu_on_which_nothing_happens_is_balanced_less_often() -> None:
    """Also where a context that has no work stays on the engine, as the driver's trace says."""
    sampled = GpuUsage(UUID, 10**9, IDLE, GIB, IDLE, {11: MIB}, 10**9, 5, {11: 5})
    before = sampled.replace(traced_ns=10**9, traced={11: 10**9})
    probing = Probing()
    probing._asked[UUID], probing._findings[UUID], probing._balanced[UUID] = before, Finding(0, 0), 100.0
    later = before.replace(asked_ns=2 * 10**9, sampled_ns=2 * 10**9, traced_ns=2 * 10**9, traced={11: 2 * 10**9})
    assert not probing._is_due(later, 101.0)
    assert probing._is_due(later, 100.0 + IDLE_S)
    assert probing._is_due(later.replace(busy_ns=6), 101.0)


def test_each_container_of_a_group_is_known_by_its_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(tmp_path / "agent")
    records.prepare(directory)
    place = Path(records.path(directory, 7))
    place.mkdir()
    (place / "cgroup").write_text("1 /sys/fs/cgroup/a/cgroup.kill\n")
    record = TenantRecord(7, "one", "one", 0, 0, 0.0, group="g")
    tenant = Tenant(record, Limits((), (), "1", "one"))
    monkeypatch.setattr(under_test, "_cgroup", lambda pid: {1: "/a", 2: "/b/below"}.get(pid, "/"))
    owners = Owners(directory, USERS)
    assert owners.of((1, 2, os.getpid()), [tenant], {}) == {1: 7, 2: 0, os.getpid(): 0}
    (place / "cgroup").write_text("1 /sys/fs/cgroup/a/cgroup.kill\n22 /sys/fs/cgroup/b/cgroup.kill\n")
    tenant.record = record.with_members((*record.members, Member("two", "two", 0, 0)))
    assert owners.of((1, 2, os.getpid()), [tenant], {}) == {1: 7, 2: 7, os.getpid(): 0}
