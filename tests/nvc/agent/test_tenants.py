"""Containers that come, change and go: their monitors hear of it, and nothing of them stays in the agent."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nvc.agent import arriving, registry
from nvc.agent.container_state import ContainerProcess
from nvc.agent.part import Part
from nvc.agent.state.records import CONTAINERS, TENANTS
from nvc.agent.tenant import Tenant
from nvc.agent.tenants import LISTENERS
from nvc.base.errors import ContainerError
from nvc.guard import channel
from nvc.guard.channel import Connection
from nvc.linux import seccomp
from nvc.share.limits import Limits
from tests.support import leftovers
from tests.support.admitted import KEY, AdmittedContainers, look
from tests.support.isolation import in_namespaces

pytestmark = pytest.mark.root

#: In one test: registered, hung up, gone.
CONTAINERS_IN_ALL, BEFORE = 60, 10


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def hung_up() -> int:
    """As the listener of a process that ended: the read end of a pipe."""
    end, other = os.pipe()
    os.close(other)
    return end


def left(place: AdmittedContainers) -> list[str]:
    """Names of files that the agent has of tenants."""
    return [name for kind in (TENANTS, CONTAINERS) for name in os.listdir(f"{place.directory}/{kind}")]


def test_containers_that_are_gone_leave_nothing(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:

        def some(count: int) -> None:
            for _ in range(count):
                listener = hung_up()
                assert place.admit(listener)
                os.close(listener)
                assert place.are_gone()

        some(BEFORE)
        before = open_files()
        some(CONTAINERS_IN_ALL - BEFORE)
        assert open_files() <= before
        assert place.events() == ["tenant", "gone"] * CONTAINERS_IN_ALL
        assert left(place) == []


def test_processes_put_into_a_container_that_stays_leave_nothing(tmp_path: Path) -> None:
    # Their listeners stayed open until the container ended: a probe that is executed every few seconds used up the
    # agent's descriptors within days.
    with AdmittedContainers(tmp_path) as place:
        first, other = os.pipe()
        assert place.admit(first)
        (tenant,) = place.tenants
        monitor = f"/proc/{place.supervisors.pids(tenant.number)[0]}/fd"
        before = open_files(), len(os.listdir(monitor))
        for _ in range(100):
            listener = hung_up()
            assert not place.admit(listener, status="running")
            os.close(listener)
        assert open_files() <= before[0]
        assert len(os.listdir(monitor)) <= before[1] + 1
        asyncio.run(look(place.tenants, place.supervisors))
        assert [one.number for one in place.tenants] == [tenant.number]
        assert "refused" not in place.events()
        os.close(other)
        assert place.are_gone()
        os.close(first)


def test_an_acceptor_finds_the_monitor_of_a_container(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:
        listener, other = os.pipe()
        assert place.admit(listener)
        (tenant,) = place.tenants
        found = Path(place.directory, CONTAINERS, KEY)
        assert (found / "monitor").is_socket()
        assert (found / "plan").samefile(f"{place.directory}/{TENANTS}/{tenant.number}/plan")
        os.close(other)
        assert place.are_gone()
        os.close(listener)
        assert left(place) == []


class Looking(Connection):
    """Whether acceptors would find the container's monitor when it is asked to start."""

    found = False
    link = ""

    def ask(self, packet: bytes, descriptors: Sequence[int] = ()) -> tuple[int, bytes, list[int]]:
        self.found = os.path.lexists(self.link)
        return super().ask(packet, descriptors)


def test_an_agent_that_ends_while_a_monitor_starts_leaves_one_that_is_found(tmp_path: Path) -> None:
    """Processes that were put into the container waited for another agent."""
    with AdmittedContainers(tmp_path) as place:
        connection, monitor = place.supervisors._spawn()
        place._monitors.append(monitor)
        looking = Looking(connection._socket)
        looking.link = f"{place.directory}/{CONTAINERS}/{KEY}"
        listener, other = os.pipe()
        assert asyncio.run(place.tenants.admit(place.process, listener, looking))
        assert looking.found
        os.close(other)


def test_the_next_agent_finds_its_tenants(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:
        listener, other = os.pipe()
        assert place.admit(listener)
        (tenant,) = place.tenants
        pids = place.supervisors.pids(tenant.number)
        again = place.agent()
        again.take_over()
        (found,) = again
        assert (found.record, found.limits) == (tenant.record, tenant.limits)
        assert place.supervisors.pids(found.number) == pids
        assert place.events() == ["tenant", "tenant"]
        place.set(memory=1 << 29)
        assert leftovers.until(lambda: place.tenants.refresh(found), seconds=20)
        assert found.limits.gpus[0].memory == 1 << 29
        os.close(other)
        assert place.are_gone()
        os.close(listener)


def test_a_container_whose_record_is_damaged_keeps_its_plan(tmp_path: Path) -> None:
    """Another tenant got its number, and wrote its limits into that plan."""
    with AdmittedContainers(tmp_path) as place:
        listener, other = os.pipe()
        assert place.admit(listener)
        (tenant,) = place.tenants
        monitor, _ = place.supervisors.pids(tenant.number)
        plan = Path(place.directory, TENANTS, str(tenant.number), "plan")
        whole = plan.read_bytes()
        Path(place.directory, TENANTS, f"{tenant.number}.json").write_bytes(b"{")
        place.agent().take_over()
        assert (len(place.tenants), place.events()) == (0, ["tenant", "warning", "warning"])
        assert not place.admit(listener), "its quota is not to be had twice"
        assert place.admit(listener, place.another("c2", "", place.limits))
        assert [one.number for one in place.tenants] == [tenant.number + 1]
        assert (plan.read_bytes(), Path(f"/proc/{monitor}/comm").read_text()) == (whole, "nvc-monitor\n")
        os.close(other)
        assert leftovers.until(lambda: place._monitors[0].poll() is not None, seconds=20)
        os.close(listener)


@pytest.mark.parametrize("when", ["while an agent is there", "before the next"])
def test_a_container_whose_two_processes_are_gone_is_ended(tmp_path: Path, when: str) -> None:
    with AdmittedContainers(tmp_path) as place:
        listener, other = os.pipe()
        assert place.admit(listener)
        (tenant,) = place.tenants
        monitor, supervisor = place.supervisors.pids(tenant.number)
        if when == "before the next":
            place.agent()
        # At once: neither sees that the other ended.
        for pid in (monitor, supervisor):
            os.kill(pid, signal.SIGSTOP)
        for pid in (supervisor, monitor):
            os.kill(pid, signal.SIGKILL)
        if when == "before the next":
            assert leftovers.until(lambda: not Path(f"/proc/{supervisor}/fd/3").exists(), seconds=20)
            place.tenants.take_over()
        else:
            assert place.are_gone()
        assert place.container.wait(20) == -signal.SIGKILL
        (told,) = (one for one in place.told if one["event"] == "supervisor-died")
        assert (told["container"], told["tenant"], told["ended"]) == (KEY, tenant.number, True)
        assert (len(place.tenants), left(place)) == (0, [])
        os.close(listener)
        os.close(other)


def test_limits_that_cannot_be_read_change_nothing(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:
        listener, other = os.pipe()
        assert place.admit(listener)
        path = Path(place.shares, KEY, "limits")
        whole = path.read_bytes()
        path.write_bytes(whole[:100])
        asyncio.run(look(place.tenants, place.supervisors))
        assert place.events() == ["tenant", "warning"]
        (tenant,) = place.tenants
        assert place.supervisors.limits(tenant.number) == whole
        for number in (other, listener):
            os.close(number)


def test_a_limits_file_is_read_when_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all tenants were read four times a second."""
    with AdmittedContainers(tmp_path) as place:
        listener, other = os.pipe()
        assert place.admit(listener)
        (tenant,) = place.tenants
        read, refresh = [], place.tenants.refresh
        monkeypatch.setattr(place.tenants, "refresh", lambda tenant: read.append(tenant) or refresh(tenant))
        time.sleep(0.1)  # what was written just now may be written again in the same tick
        for _ in range(5):
            asyncio.run(look(place.tenants, place.supervisors))
        assert len(read) == 1
        for memory in (2 << 30, 3 << 30):  # in one tick of the kernel, most likely
            place.set(memory=memory)
            asyncio.run(look(place.tenants, place.supervisors))
        assert leftovers.until(lambda: _memory(place, tenant) == 3 << 30, seconds=20)
        for number in (other, listener):
            os.close(number)


def _memory(place: AdmittedContainers, tenant: Tenant) -> int:
    asyncio.run(look(place.tenants, place.supervisors))
    return tenant.limits.gpus[0].memory


def test_a_monitor_that_does_not_answer_delays_no_other_end(tmp_path: Path) -> None:
    """A look waited for all ends, so that for six seconds nothing else was looked at."""
    count = 8
    with AdmittedContainers(tmp_path) as place:
        for one in place.admit_several(count):
            os.close(one)
        waited = leftovers.until(lambda: all(place.supervisors.gone(one.number) for one in place.tenants), seconds=30)
        assert waited
        late = place.supervisors.pids(min(one.number for one in place.tenants))[0]
        os.kill(late, signal.SIGSTOP)

        async def drain() -> None:
            tasks = len(asyncio.all_tasks())
            await place.tenants.look(place.supervisors.publications.reader().take())
            assert len(place.tenants) == 0, "none is the agent's any more"
            assert len(asyncio.all_tasks()) == tasks + count, "and none was waited for"
            while place.events().count("gone") < count - 1:
                await asyncio.sleep(0.01)
            assert "1" in left(place) and "2" not in left(place)
            os.kill(late, signal.SIGCONT)
            await place.tenants.ended()

        asyncio.run(asyncio.wait_for(drain(), 30))
        assert left(place) == []
        assert place.events().count("gone") == count


def test_monitors_that_do_not_answer_delay_an_agents_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was waited for in turn: six seconds for each monitor that hung."""
    count, seconds = 4, 2.0
    monkeypatch.setattr(registry, "SECONDS", seconds)
    monkeypatch.setattr(channel, "SECONDS", seconds)
    with AdmittedContainers(tmp_path) as place:
        ends = place.admit_several(count)
        monitors = [place.supervisors.pids(one.number)[0] for one in place.tenants]
        for pid in monitors:
            os.kill(pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert asyncio.run(place.tenants.close()) == count
            assert time.monotonic() - begun < 2 * seconds
        finally:
            for pid in monitors:
                os.kill(pid, signal.SIGCONT)
        for one in ends:
            os.close(one)


class Full(Part):
    """Takes no further tenant with a cap."""

    def check(self, limits: Limits) -> None:
        raise ContainerError("GPU 0: its cap cannot be kept", hint="take another GPU")


def test_a_container_whose_cap_cannot_be_kept_is_refused_with_the_reason(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:
        place.tenants._parts.append(Full())
        listener, other = os.pipe()
        assert not place.admit(listener)
        assert len(place.tenants) == 0
        (told,) = place.told
        assert (told["event"], told["container"], told["message"], told["hint"]) == (
            "refused",
            KEY,
            "container error: GPU 0: its cap cannot be kept",
            "take another GPU",
        )
        assert left(place) == []
        for number in (other, listener):
            os.close(number)


def test_a_driver_that_is_not_known_is_refused_with_the_reason(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:
        place.limits = place.limits.replace(driver="100.1")
        place.set()
        listener, other = os.pipe()
        assert not place.admit(listener)
        (told,) = place.told
        assert told["message"] == f"container error: container {KEY}: driver 100.1 is not known to the guard"
        assert "nvc.guard=off" in str(told["hint"])
        assert left(place) == []
        for number in (other, listener):
            os.close(number)


def test_too_many_processes_in_a_container_at_once_are_told_as_that(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:
        ends = [os.pipe() for _ in range(LISTENERS + 1)]
        for number, (listener, _) in enumerate(ends):
            assert place.admit(listener) == (number == 0)
        (refused,) = (event for event in place.told if event["event"] == "refused")
        assert f"{LISTENERS} processes that were put into it are there, and it can have no more" in str(
            refused["message"]
        )
        assert "when some have ended" in str(refused["hint"])
        for pair in ends:
            for number in pair:
                os.close(number)


def filtered() -> int:
    """A process that has a filter and does nothing but sleep."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.closerange(3, told)
        os.closerange(told + 1, 4096)
        seccomp.install()
        os.write(told, b"x")
        time.sleep(60)
        os._exit(0)
    os.close(told)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    return child


def strangers(path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a process lives that got the pid of a refused one, which ended while its share was waited for."""
    with AdmittedContainers(path) as place:
        number = filtered()
        found = []

        async def end(process: ContainerProcess, shares: str) -> None:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
            found.append(filtered())
            raise ContainerError("no share")

        monkeypatch.setattr(arriving, "entry", end)
        assert not place.admit(hung_up(), pid=number)
        assert found == [number]
        lives = os.waitpid(number, os.WNOHANG) == (0, 0)
        if lives:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
        return lives


def test_a_process_that_gets_the_pid_of_a_refused_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_namespaces(strangers, tmp_path, monkeypatch, pid=True)


def test_a_refused_process_that_has_a_filter_is_ended(tmp_path: Path) -> None:
    with AdmittedContainers(tmp_path) as place:
        number = filtered()
        listener = hung_up()
        assert not place.admit(listener, container="another", pid=number, first=number)
        os.close(listener)
        assert os.waitpid(number, 0)[1] == signal.SIGKILL
        assert (place.told[0]["event"], place.told[0]["ended"]) == ("refused", True)
