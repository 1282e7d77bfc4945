"""The node's prober on a simulated GPU: how often the driver is asked, what is published, what goes on without it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.guard import pages, usage
from nvc.guard.prober import LOCK, Prober
from nvc.guard.supervisors import USER_COUNT, USERS, Supervisors
from tests.support import leftovers
from tests.support.acceptors import processes
from tests.support.agent_tenants import RunningAgent
from tests.support.attacks import SOURCES
from tests.support.guarded import build_launcher
from tests.support.leftovers import wait_until
from tests.support.manager import DEVICE, Client, ioctl, request
from tests.support.native import build
from tests.support.nv_numbers import NUMBERS
from tests.support.opened import names, opened
from tests.support.simgpu import DRIVER, UUID, SimGpu, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import Tenants, build_static, prepare
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
#: native/sim/device.h: struct sim_questions.
QUESTIONS = struct.Struct("=2Q")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = prepare(tmp_path_factory.mktemp("machine"))
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    build("nvc-prober")
    return directory


def questions() -> int:
    """GET_PID_INFO so far, of everything on this machine."""
    file = os.open("/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    try:
        told = ctypes.create_string_buffer(QUESTIONS.size)
        ioctl(file, request(0xE7, QUESTIONS.size, kind="S"), told)
        return int(QUESTIONS.unpack(told.raw)[1])
    finally:
        os.close(file)


def rate(seconds: float) -> float:
    """Questions a second, from now on."""
    before, begun = questions(), time.monotonic()
    time.sleep(seconds)
    return (questions() - before) / (time.monotonic() - begun)


@contextlib.contextmanager
def probing(tenants: Tenants, *numbers: int) -> Iterator[Prober]:
    """A prober that knows these tenants, and has answers."""
    prober = tenants.guard.prober()
    for number in numbers:
        prober.tenant(number, [UUID])
    try:
        assert prober.look() == ""
        wait_until(lambda: tenants.guard.usage().gpus, "the prober publishes")
        yield prober
    finally:
        prober.close()


def reported(tenants: Tenants) -> dict[int, int]:
    """Pid -> bytes, as published last."""
    found = tenants.guard.usage().gpus.get(UUID)
    return found.processes if found is not None else {}


def device_only() -> int:
    """A process that holds 3 GiB of a client without a subdevice, as none of CUDA's is: GET_PIDS does not list it."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        with open(ready, "rb") as pipe:
            assert pipe.read(1) == b"1"
        return pid
    try:
        one = Client.__new__(Client)
        one.file, one.handle = os.open("/dev/nvidiactl", os.O_RDWR), 0
        one.handle = one.allocate(0, 0, 0, b"")[1]
        made = one.allocate(one.handle, DEVICE, NUMBERS["NV01_DEVICE_0"], bytes(56))[0], one.memory(0x77, 3 * GIB)[0]
        os.write(told, b"1" if made == (0, 0) else b"0")
        signal.pause()
    finally:
        os._exit(1)


def held(tenants: Tenants, place: Path, number: int) -> int:
    """A program of the tenant's that holds 2 GiB; its pid."""
    program = tenants.start(place / "attack", "victim", tenant=number)
    assert program.stdout
    assert program.stdout.readline() == "memory=0\n"
    return program.pid


def test_the_driver_is_asked_as_often_for_many_tenants_as_for_few(place: Path) -> None:
    """Before: each supervisor asks about each of its processes once a second."""

    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            pids = []
            for number in range(1, 9):
                tenants.add(number, memory=10 * GIB)
                pids += [held(tenants, place, number), held(tenants, place, number)]
                if number == 2:
                    few = rate(3.0)
            many = rate(3.0)
            with probing(tenants, *range(1, 9)):
                wait_until(lambda: set(pids) <= set(reported(tenants)), "all are published")
                time.sleep(1.0)
                probed = rate(3.0)
            print(f"questions a second: 2 tenants {few:.1f}, 8 tenants {many:.1f}, with a prober {probed:.1f}")
            assert few > 2, "four processes"
            assert many > 8, "sixteen"
            assert 0.2 < probed < 4, "two, of up to 200 processes each; fewer on a busy machine"

    with_gpu(place, inside)


def test_what_is_published_is_what_the_driver_says(place: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            for number in (1, 2):
                tenants.add(number, memory=10 * GIB)
            with probing(tenants, 1, 2):
                idle = tenants.guard.usage().gpus[UUID]
                pids = [held(tenants, place, number) for number in (1, 1, 2)]
                wait_until(lambda: {reported(tenants).get(pid) for pid in pids} == {2 * GIB}, "each with 2 GiB")
                now = tenants.guard.usage().gpus[UUID]
                assert now.used - idle.used == sum(now.processes.values()) == 6 * GIB
                assert (now.idle, now.total) == (idle.used, idle.total)
                wait_until(lambda: tenants.of(2).driver_usage == 2 * GIB, "its supervisor has it from the page")
                os.kill(pids[0], signal.SIGKILL)
                wait_until(lambda: pids[0] not in reported(tenants), "one that ended is not there")

    with_gpu(place, inside)


def test_of_what_the_prober_asked_for_as_root_only_a_mapping_for_reading_is_left(place: Path) -> None:
    """The trace of context switches: no descriptor reaches the client that has it, so no call does."""

    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            tenants.add(1, memory=10 * GIB)
            with probing(tenants, 1):
                pid = usage.prober_pid(tenants.guard._contention)
                clients = [name for name in names(pid) if name.endswith("/nvidiactl")]
                maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
                assert len(clients) == 1, "its own, made without rights"
                assert [line.split()[1] for line in maps if "nvidiactl" in line] == ["r--s"]
                status = Path(f"/proc/{pid}/status").read_text()
                assert "CapEff:\t0000000000000000" in status and "Seccomp:\t2" in status

    with_gpu(place, inside)


def test_a_process_that_the_driver_does_not_list(place: Path) -> None:
    """One without a subdevice is asked about where it is named, and from then on while it holds memory."""

    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            tenants.add(1, memory=10 * GIB)
            with probing(tenants, 1) as prober:
                pid = device_only()
                time.sleep(1.2)
                assert pid not in reported(tenants)
                prober.name([pid])
                wait_until(lambda: reported(tenants).get(pid) == 3 * GIB, "it is asked about")
                prober.name([])
                time.sleep(2.5)
                assert reported(tenants).get(pid) == 3 * GIB, "nothing takes it away"
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                wait_until(lambda: not reported(tenants).get(pid), "but its end")

    with_gpu(place, inside)


def test_a_supervisor_that_is_taken_over_lowers_nothing(place: Path) -> None:
    """It says that its tenant has no process, no memory, and has ended."""

    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            tenants.add(1, memory=10 * GIB)
            with probing(tenants, 1):
                pid = held(tenants, place, 1)
                wait_until(lambda: reported(tenants).get(pid) == 2 * GIB, "it is published")
                _, supervisor = tenants.guard.pids(1)
                os.kill(supervisor, signal.SIGSTOP)
                number = next(number for number, file in opened(supervisor).items() if "counters" in file.name)
                counters = os.open(f"/proc/{supervisor}/fd/{number}", os.O_RDWR)
                at = pages._CountersFile.counters.offset
                os.pwrite(counters, bytes(2 * ctypes.sizeof(pages._Counters)), at)
                os.pwrite(counters, b"\xff" * 16, 0)
                time.sleep(2.5)
                assert reported(tenants)[pid] == 2 * GIB
                os.close(counters)
                os.kill(supervisor, signal.SIGCONT)

    with_gpu(place, inside)


def test_what_a_tenant_adds_to_the_list_is_bounded(place: Path) -> None:
    """512 processes of a hostile supervisor's are one question more at the most, and its neighbours' are published."""

    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            for number in (1, 2):
                tenants.add(number, memory=10 * GIB)
            pid = held(tenants, place, 2)
            _, supervisor = tenants.guard.pids(1)
            os.kill(supervisor, signal.SIGSTOP)
            number = next(number for number, file in opened(supervisor).items() if "counters" in file.name)
            counters = os.open(f"/proc/{supervisor}/fd/{number}", os.O_RDWR)
            forged = pages._Counters(process_count=2**32 - 1)
            for index in range(pages.PROCESSES):
                forged.processes[index].pid = 100_000 + index if index % 2 else 2**32 - 1 - index
            for copy in (0, 1):
                at = pages._CountersFile.counters.offset + copy * ctypes.sizeof(pages._Counters)
                os.pwrite(counters, bytes(forged), at)
            with probing(tenants, 1, 2):
                wait_until(lambda: reported(tenants).get(pid) == 2 * GIB, "the neighbour's")
                wait_until(lambda: len(reported(tenants)) > 32, "those that can be pids are asked about")
                assert len(reported(tenants)) < 80
                assert rate(3.0) < 4
            os.close(counters)
            os.kill(supervisor, signal.SIGCONT)

    with_gpu(place, inside)


def test_supervisors_go_on_when_the_prober_is_killed(place: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            tenants.add(1, memory=10 * GIB)
            pids = [held(tenants, place, 1) for _ in range(2)]
            with probing(tenants, 1) as prober:
                wait_until(lambda: set(pids) <= set(reported(tenants)), "all are published")
                time.sleep(1.0)
                before = rate(3.0)
                os.kill(usage.prober_pid(tenants.guard._contention), signal.SIGKILL)
                time.sleep(usage.FRESH_NS / 1e9 + 1.5)
                assert not tenants.guard.usage().gpus
                wait_until(lambda: rate(1.0) > 0, "the supervisor asks about two processes, which make no call")
                assert before < 4
                assert prober.look() == "nvc-prober ended (signal 9); another one is started"
                wait_until(lambda: (prober.look(), set(pids) <= set(reported(tenants)))[1], "another one publishes")

    with_gpu(place, inside)


def test_the_prober_outlives_an_agent_and_is_found_again(place: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        launcher = build_launcher(gpu.work)
        with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, launcher, environment(gpu)) as agent:
            directory = Path(agent.directory)
            page = os.open(directory / "contention", os.O_RDONLY)
            with Spoken(agent.tenant(memory=9 * GIB).wrap([f"{place}/attack", "victim"]), environment(gpu)) as program:
                assert program.line() == "memory=0"
                wait_until(lambda: 2 * GIB in published(page).values(), "the agent's prober publishes")
                pid = usage.prober_pid(page)
                agent.process.kill()
                agent.process.wait()
                before = usage.written_ns(page)
                time.sleep(2.0)
                assert usage.written_ns(page) > before + 10**9, "it goes on without"
                assert 2 * GIB in published(page).values()
                agent.process = agent._start()
                assert agent.ready()
                time.sleep(1.0)
                assert usage.prober_pid(page) == pid, "the next agent finds it"
                os.kill(pid, signal.SIGKILL)
                wait_until(
                    lambda: usage.prober_pid(page) != pid and 2 * GIB in published(page).values(), "it starts another"
                )
                assert '"event":"prober","message":"nvc-prober ended; another' in agent.log.read_text()
                # One that an agent of another version has left, whose page this one cannot read.
                pid = usage.prober_pid(page)
                agent.process.kill()
                agent.process.wait()
                with open(directory / "contention", "r+b", buffering=0) as file:
                    os.pwrite(file.fileno(), (usage.VERSION - 1).to_bytes(4, "little"), usage._Page.version.offset)
                agent.process = agent._start()
                assert agent.ready()
                wait_until(lambda: 2 * GIB in published(page).values(), "an update replaces it", seconds=20)
                assert usage.prober_pid(page) != pid and has_ended(pid)
                assert "nvc-prober is of another version" in agent.log.read_text()
            pid = usage.prober_pid(page)
            wait_until(lambda: has_ended(pid), "without tenants it ends", seconds=40)
            os.close(page)
            assert (directory / LOCK).exists()

    with_gpu(place, inside)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def published(page: int) -> dict[int, int]:
    found = usage.Page(page).read().gpus.get(UUID)
    return found.processes if found is not None else {}


def test_the_prober_has_no_rights_and_costs_little(place: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        with Tenants(gpu, place) as tenants:
            tenants.add(1, memory=10 * GIB)
            with probing(tenants, 1):
                pid = usage.prober_pid(tenants.guard._contention)
                text = Path(f"/proc/{pid}/status").read_text()
                status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
                assert status["Uid"].split() == status["Gid"].split() == [str(USERS + USER_COUNT)] * 4
                assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
                assert (status["Seccomp"], status["NoNewPrivs"], status["Groups"].strip()) == ("2", "1", "")
                assert os.readlink(f"/proc/{pid}/root") == f"/proc/{pid}/fdinfo"
                files = opened(pid).values()
                kinds = sorted({file.name.split(":[")[0].removesuffix(" (deleted)") for file in files})
                assert kinds == [
                    "/dev/nvidia0",
                    "/dev/nvidiactl",
                    "/memfd:nvc-contention",
                    "/memfd:nvc-counters",
                    "anon_inode",
                    "socket",
                ]
                own = sorted(file.name for file in files if file.name.startswith("anon_inode"))
                assert own == ["anon_inode:[eventfd]", "anon_inode:[eventpoll]"], "what tells of them"
                assert {file.flags[-1] for file in files if "counters" in file.name} == {"0"}, "for reading"
                time.sleep(1.0)
                begun, before = time.monotonic(), cpu(pid)
                time.sleep(5.0)
                part = (cpu(pid) - before) / (time.monotonic() - begun)
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                sizes = {line.split()[0]: int(line.split()[1]) for line in rollup[1:]}
                print(f"{sizes['Private_Dirty:']} KiB written, {sizes['Rss:']} resident, {part:.5f} of a processor")
                assert sizes["Private_Dirty:"] < 400
                assert part < 0.01

    with_gpu(place, inside)


def cpu(pid: int) -> float:
    """Seconds of the processor (sum_exec_runtime, proc_pid_schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_no_prober_is_left(place: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        directory = gpu.work / "agent"
        directory.mkdir(mode=0o711)
        for name in ("tenants", "containers"):
            (directory / name).mkdir()
        with Supervisors("/dev", str(directory)) as guard:
            prober = guard.prober()
            assert prober.look() == ""
            assert usage.prober_pid(guard._contention) == 0, "none without a tenant"
            prober.tenant(1, [UUID])
            assert prober.look() == ""
            wait_until(lambda: usage.prober_pid(guard._contention) != 0, "one with")
            pid = usage.prober_pid(guard._contention)
            assert pid in processes("nvc-prober", "/dev")
            prober.gone(1)
            prober.close()
            assert leftovers.until(lambda: has_ended(pid), seconds=30)

    with_gpu(place, inside)
