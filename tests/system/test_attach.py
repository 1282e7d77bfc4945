"""Processes that were started without us, on a simulated GPU with a real clock: found, given timeslices, left again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvc.agent import status
from nvc.base.errors import ContainerError, InputError, NvcError
from nvc.bindings import rmcontrol
from nvc.guard import attach, attached
from nvc.guard.attached import AttachedProcess
from nvc.guard.supervisors import ATTACHED, Supervisors
from nvc.linux import syscalls
from nvc.share import limits, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.protocol import Client
from nvc.share.store import StoredShare
from tests.support.leftovers import wait_until
from tests.support.native import CHECKOUT
from tests.support.repeated import good
from tests.support.simgpu import DRIVER, UUID, Probe, SimGpu, make_machine, with_gpu

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    return directory


def working(gpu: SimGpu) -> Probe:
    probe = gpu.probe(preload=False)
    assert probe.init() == 0
    assert probe.work(5000) == 0  # four at a time: they are seldom out of work
    return probe


def slices(process: AttachedProcess) -> set[int]:
    """What its compute groups have now."""
    found = set()
    with syscalls.pidfd_open(process.pid) as pinned:
        for group in process.groups:
            with syscalls.pidfd_getfd(pinned, group.descriptor) as control:
                found.add(rmcontrol.get_timeslice(control, group.client, group.group) or 0)
    return found


def command(gpu: SimGpu, *words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "nvc", "share", *map(str, words)]
    own = ["--agent", f"{gpu.work}/no-agent", "--directory", f"{gpu.work}/attach"]
    return subprocess.run([*line, *own], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


def weights(gpu: SimGpu) -> None:
    first, second = working(gpu), working(gpu)
    before = len(os.listdir("/proc/self/fd"))
    capabilities = syscalls.capget()
    begin = time.monotonic()
    found = [attach.find(probe.process.pid, shares=f"{gpu.work}/none") for probe in (first, second)]
    attach.reweigh(found[0], 6000)
    attach.reweigh(found[1], 2000)
    assert time.monotonic() - begin < 20, "through FUSE each call takes a hundred times as long"
    assert [slices(one) for one in found] == [{6000}, {2000}]
    assert [one.source for one in found] == ["probes", "probes"]
    assert all(len(one.groups) >= 1 and one.uuid.startswith("GPU-") and one.channels for one in found)
    assert all(one.probes < 40 for one in found), "each one in vain is a line in the kernel's log"

    def rates() -> list[float]:
        first.begin("rate", 1500)
        second.begin("rate", 1500)
        return [first.end(), second.end()]

    good(rates, lambda got: got[0] > 1.7 * got[1])
    for one in found:
        attach.reweigh(one, 0)
    assert [slices(one) for one in found] == [{2048}, {2048}]
    assert before == len(os.listdir("/proc/self/fd"))
    assert capabilities == syscalls.capget()


def test_processes_without_us_get_time_by_weight_and_are_left_as_they_were(machine: Path) -> None:
    with_gpu(machine, weights)


def by_command(gpu: SimGpu) -> None:
    probe = working(gpu)
    pid = probe.process.pid
    done = command(gpu, "attach", "--pid", pid, "--weight", 30)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        rf"process {pid}: \d+ compute groups, \d+ us each, \d+ clients tried in vain, in [\d.]+ ms\n", done.stdout
    )
    found = attached.load(pid, f"{gpu.work}/attach")
    assert found is not None
    assert slices(found) == {6144 // len(found.groups)}
    # Once more: what it had before the first time is what it gets back.
    assert command(gpu, "attach", "--pid", pid, "--weight", 20).returncode == 0
    assert slices(found) == {4096 // len(found.groups)}
    done = command(gpu, "detach", "--pid", pid)
    assert (done.returncode, done.stdout) == (0, f"detached: {pid}\n")
    assert slices(found) == {2048}
    assert os.listdir(f"{gpu.work}/attach") == []
    done = command(gpu, "detach", "--pid", pid)
    assert done.returncode == 1
    assert "nothing there is attached" in done.stderr
    done = command(gpu, "attach", "--pid", pid, "--cap", "50%")
    assert done.returncode == 1
    assert "a cap cannot be kept without the agent" in done.stderr
    for words in (["--weight", 3], ["--pid", pid], ["--pid", pid, "--container", "x", "--weight", 3]):
        assert command(gpu, "attach", *words).returncode == 1
    assert probe.rate(100) > 0


def test_the_command_attaches_and_detaches(machine: Path) -> None:
    with_gpu(machine, by_command)


def nothing_to_find(gpu: SimGpu) -> None:
    working(gpu)
    idle = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(ContainerError, match="no compute groups"):
            attach.find(idle.pid, shares=f"{gpu.work}/none")
        bare = gpu.probe(preload=False)
        opened = os.open("/dev/nvidiactl", os.O_RDWR)
        with pytest.raises(ContainerError, match=r"no compute groups that can be found \(7 clients tried\)"):
            attach.find(os.getpid(), shares=f"{gpu.work}/none", probes=7)
        os.close(opened)
        bare.kill()
    finally:
        idle.kill()
        idle.wait()
    with pytest.raises(ContainerError, match="no process"):
        attach.find(idle.pid)


def test_a_process_without_groups_is_tried_no_more_than_allowed(machine: Path) -> None:
    with_gpu(machine, nothing_to_find)


def of_another_container(gpu: SimGpu) -> None:
    """The group of a container that passed its descriptor to another one would be weighed with that one."""
    found = attach.find(working(gpu).process.pid, shares=f"{gpu.work}/none")
    with (
        syscalls.pidfd_open(found.pid) as pinned,
        syscalls.pidfd_getfd(pinned, found.groups[0].descriptor) as passed,
        subprocess.Popen(["unshare", "--mount", "sleep", "60"], pass_fds=[passed.fileno()]) as other,
        subprocess.Popen(["sleep", "60"], pass_fds=[passed.fileno()]) as beside,
    ):
        for process in (other, beside):
            wait_until(lambda at=process.pid: Path(f"/proc/{at}/comm").read_text() == "sleep\n")  # type: ignore[misc]
        try:
            hostile, same = (
                found.replace(
                    pid=process.pid,
                    start_time=store.start_time(process.pid),
                    groups=tuple(group.replace(descriptor=passed.fileno()) for group in found.groups),
                    channels=tuple(channel.replace(descriptor=passed.fileno()) for channel in found.channels),
                )
                for process in (other, beside)
            )
            with pytest.raises(ContainerError, match="was opened in another container"):
                attach.copies(hostile)
            with pytest.raises(ContainerError, match="was opened in another container"):
                attach.reweigh(hostile, 9000)
            with pytest.raises(ContainerError, match="no compute groups"):
                attach.find(hostile.pid, shares=f"{gpu.work}/none")
            assert slices(found) == {2048}
            attach.reweigh(same, 5000)  # of its own container's mounts
            assert slices(found) == {5000}
        finally:
            for process in (other, beside):
                process.kill()


def test_a_descriptor_that_another_container_opened_is_refused(machine: Path) -> None:
    with_gpu(machine, of_another_container)


# With a process that keeps the time.


def capped(gpu: SimGpu) -> None:
    probe = working(gpu)
    found = attach.find(probe.process.pid, shares=f"{gpu.work}/none")
    number = ATTACHED + 1
    held = attach.copies(found)
    channels = [(one.client, one.subdevice, one.channel, held[one.descriptor].fileno()) for one in found.channels]
    with Supervisors("/dev") as guard:
        limited = limits.encode(Limits((ResolvedGpu(found.uuid, 0),)))
        guard.add(number, limited, 1, first=(found.pid, found.start_time))
        with syscalls.pidfd_open(found.pid) as pidfd:
            guard.attach(number, pidfd.fileno(), (found.device, found.inode), channels)
            with pytest.raises(OSError, match="Bad file descriptor"):
                guard.attach(number, pidfd.fileno(), (found.device, found.inode), [(1, 2, 3, pidfd.fileno())])
        for copy in held.values():
            copy.close()
        guard.phase(number, 0, 50_000, 0, 15_000)
        wait_until(lambda: guard.attached(number)[2] > 0)

        def measured() -> tuple[float, float]:
            """The part of the time that it is frozen for, and what it does."""
            begin, before = time.monotonic(), guard.attached(number)[2]
            rate = probe.rate(1000)
            return (guard.attached(number)[2] - before) / 1e9 / (time.monotonic() - begin), rate

        good(measured, lambda got: 0.62 < got[0] < 0.78 and 30 < got[1] < 90, "of 200 alone")
        guard.phase(number, 0, 0, 0, 0)
        wait_until(lambda: not guard.attached(number)[1])
        wait_until(lambda: bool(probe.rate(300) > 100))
        guard.phase(number, 0, 50_000, 0, 2_000)
        wait_until(lambda: guard.attached(number)[1])
        # A supervisor that dies leaves no channel off.
        os.kill(guard.pids(number)[1], signal.SIGKILL)
        wait_until(lambda: guard.lost() == [number])
        wait_until(lambda: bool(probe.rate(300) > 100))


def test_a_cap_of_a_process_without_us_is_kept_and_none_stays_frozen(machine: Path) -> None:
    with_gpu(machine, capped)


@contextmanager
def an_agent(gpu: SimGpu, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    place.mkdir(exist_ok=True)
    config = place / "config.toml"
    config.touch()
    words = ["--directory", f"{place}/agent", "--store", f"{place}/shares", "--config", str(config)]
    log = gpu.work / "agent.log"
    with log.open("wb") as file:
        agent = subprocess.Popen([sys.executable, "-m", "nvc", "agent", *words], cwd=CHECKOUT, stdout=file, stderr=file)
    try:
        wait_until(lambda: answers(place) or agent.poll() is not None)
        assert agent.poll() is None, log.read_text()
        yield agent
    finally:
        agent.terminate()
        agent.wait(30)


def by_agent(gpu: SimGpu) -> None:
    with an_agent(gpu, gpu.work / "run"):
        with_agent(gpu, gpu.work / "run")


def by_an_agent_that_dies(gpu: SimGpu) -> None:
    place = gpu.work / "run"
    probe = working(gpu)
    with an_agent(gpu, place) as agent:
        with Client(f"{place}/agent/control") as client:
            client.call("attach", pid=probe.process.pid, cap="2%")
            wait_until(lambda: client.call("status")["tenants"][0]["gpus"][0]["frozen"])
            good(lambda: probe.rate(500), lambda rate: rate < 60, "2 % of 200 a second, and what was given before")
        agent.kill()
        agent.wait()
        wait_until(lambda: bool(probe.rate(200) > 100))


def test_a_killed_agent_leaves_no_process_frozen(machine: Path) -> None:
    with_gpu(machine, by_an_agent_that_dies)


def by_an_agent_that_did_not_attach(gpu: SimGpu) -> None:
    # It said that nothing was attached, and the command asks it alone: the process kept its timeslice for ever.
    place = gpu.work / "run"
    probe = working(gpu)
    pid = probe.process.pid
    with an_agent(gpu, place) as agent, Client(f"{place}/agent/control") as client:
        client.call("attach", pid=pid, weight=30, cap="50%")
        agent.kill()
        agent.wait()
    found = attached.load(pid, f"{place}/attach")
    assert found is not None
    attach.reweigh(found, 5000)
    with an_agent(gpu, place), Client(f"{place}/agent/control") as client:
        assert client.call("detach", pid=pid) == {"pids": [pid]}
        assert slices(found) == {2048}
        with pytest.raises(InputError, match="nothing is attached"):
            client.call("detach", pid=pid)
    assert os.listdir(f"{place}/attach") == []


def test_a_process_that_another_agent_attached_is_detached(machine: Path) -> None:
    with_gpu(machine, by_an_agent_that_did_not_attach)


def answers(place: Path) -> bool:
    try:
        with Client(f"{place}/agent/control") as client:
            return bool(client.call("status"))
    except NvcError:
        return False


def with_agent(gpu: SimGpu, place: Path) -> None:
    first, second = working(gpu), working(gpu)
    with Client(f"{place}/agent/control") as client:
        for probe, weight in ((first, 30), (second, 10)):
            (done,) = client.call("attach", pid=probe.process.pid, weight=weight)["processes"]
            assert done["source"] == "probes"
        assert [("attach", [0.75]), ("attach", [0.25])] == [
            (one.kind, [round(each.target_ratio, 2) for each in one.gpus]) for one in status.ask(client).tenants
        ]
        processes = [attached.load(probe.process.pid, f"{place}/attach") for probe in (first, second)]
        assert all(processes)
        lengths = [slices(process).pop() * len(process.groups) for process in processes if process is not None]
        assert lengths[0] == pytest.approx(3 * lengths[1], rel=0.01)
        client.call("attach", pid=first.process.pid, weight=30, cap="20%")
        wait_until(lambda: status.ask(client).tenants[-1].gpus[0].frozen_ns > 0)
        assert client.call("detach", pid=first.process.pid) == {"pids": [first.process.pid]}
        assert processes[0] is not None
        assert slices(processes[0]) == {2048}
        assert [one.container for one in status.ask(client).tenants] == [f"pid {second.process.pid}"]
        second.kill()
        wait_until(lambda: os.listdir(f"{place}/attach") == [])  # without a request
        assert client.call("status")["tenants"] == []
        with pytest.raises(InputError, match="nothing is attached"):
            client.call("detach", pid=first.process.pid)
        # The command's --probes are the agent's too.
        opened = os.open("/dev/nvidiactl", os.O_RDWR)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "nvc", "share", "attach", "--agent", f"{place}/agent/control"),
                *("--pid", str(os.getpid()), "--weight", "3", "--probes", "7"),
            ],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
        )
        os.close(opened)
        assert "no compute groups that can be found (7 clients tried)" in done.stderr
    wait_until(lambda: bool(first.rate(300) > 100))
    assert os.listdir(f"{place}/attach") == []


def test_the_agent_schedules_attached_processes_together(machine: Path) -> None:
    with_gpu(machine, by_agent)


def known_handles(gpu: SimGpu) -> None:
    shares = f"{gpu.work}/shares"
    wish = Limits((ResolvedGpu(uuid=UUID, minor=0),), gpu.nodes(), DRIVER, "abc")
    path = store.create(
        StoredShare("abc", "abc", os.getpid(), store.start_time(os.getpid())), wish, b"", directory=shares
    )
    gpu.limits_path, gpu.region_path = Path(path, "limits"), Path(path, "region")
    probe = gpu.probe()
    assert probe.init() == 0
    assert probe.work(5000) == 0
    begin = time.monotonic()
    found = attach.find(probe.process.pid, shares=shares)
    attach.reweigh(found, 5000)
    assert time.monotonic() - begin < 20
    assert ("region", 0, UUID) == (found.source, found.probes, found.uuid)
    assert slices(found) == {5000}
    by_trying = attach.find(probe.process.pid, shares=f"{gpu.work}/none")
    assert {(one.client, one.group) for one in found.groups} == {(one.client, one.group) for one in by_trying.groups}
    assert {one.channel for one in found.channels} <= {one.channel for one in by_trying.channels}
    assert {one.subdevice for one in found.channels} == {one.subdevice for one in by_trying.channels}


def test_handles_are_known_where_the_library_is(machine: Path) -> None:
    with_gpu(machine, known_handles)
