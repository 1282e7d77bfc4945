"""``share suspend`` and ``resume``: processes of a tenant give their GPU memory to others and get it back."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.state import records
from nvc.agent.state.records import Suspension
from nvc.base.errors import ContainerError, InputError, NvcError
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.guarded import build_launcher
from tests.support.native import build
from tests.support.simgpu import DRIVER, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

GIB = 1 << 30
PROGRAM = Path(__file__).with_name("programs") / "hold_memory.py"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build("cuda_burn", "nvc-prober")
    return directory


class Bed:
    """An agent, and programs that hold memory in its tenants."""

    def __init__(self, gpu: SimGpu, agent: RunningAgent) -> None:
        self.gpu, self.agent = gpu, agent
        self.programs: list[Spoken] = []

    def program(self, tenant: AgentTenant, *lines: str) -> Spoken:
        """Running, and each of its calls was answered by success."""
        command = tenant.wrap([sys.executable, str(PROGRAM)])
        self.programs.append(Spoken(command, environment(self.gpu), seconds=30))
        assert self.programs[-1].line() == "ready"
        for line in lines:
            assert self.programs[-1].ask(line) == "0", line
        return self.programs[-1]

    def call(self, verb: str, tenant: AgentTenant, **fields: object) -> dict[str, Any]:
        with Client(f"{self.agent.directory}/control", 60.0) as client:
            return client.call(verb, container=tenant.name, **fields)

    def status(self, tenant: AgentTenant) -> dict[str, Any]:
        found = tenant.status()
        assert found is not None
        return found


@contextmanager
def bed(gpu: SimGpu) -> Iterator[Bed]:
    launcher = build_launcher(gpu.work)
    with RunningAgent(gpu.work, UUID, gpu.nodes(), DRIVER, launcher, environment(gpu)) as agent:
        made = Bed(gpu, agent)
        try:
            yield made
        finally:
            for program in made.programs:
                program.kill()


def in_bed(machine: Path, act: Callable[[Bed], None]) -> None:
    def inside(gpu: SimGpu) -> None:
        with bed(gpu) as made:
            act(made)

    with_gpu(machine, inside)


def used_by(tenant: AgentTenant, wanted: int) -> bool:
    return leftovers.until(lambda: tenant.used() == wanted, seconds=15)


def settled(tenant: AgentTenant) -> int:
    """What is charged, once that is published: two looks alike, a second apart."""
    before = -1
    while before != (before := tenant.used()) or not before:
        time.sleep(1)
    return before


def test_all_processes_go_and_come_back(machine: Path) -> None:
    """Two of one tenant. What they hold is charged as before, and a call that waited is answered."""

    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        one, other = bed.program(tenant, "alloc 3000", "alloc 8", "fill 77"), bed.program(tenant, "alloc 100")
        before = settled(tenant)
        done = bed.call("suspend", tenant)
        assert (done["processes"], done["memory"]) == (2, [before])
        assert tenant.used() == 0
        assert bed.status(tenant)["suspended"] == [before]
        one.tell("alloc 100")
        assert not select.select([one.process.stdout], [], [], 0.5)[0], "its calls wait"
        bed.call("resume", tenant)
        assert one.line() == "0", "the call that waited"
        assert used_by(tenant, before + (100 << 20))
        assert bed.status(tenant)["suspended"] == []
        assert one.ask("peek") == "77"
        assert (one.ask("sync"), other.ask("free"), one.ask("free")) == ("0", "0", "0")

    in_bed(machine, act)


def test_another_has_the_memory_meanwhile(machine: Path) -> None:
    """A resume without room is refused and changes nothing; with ``wait`` it has the memory when it is freed."""

    def act(bed: Bed) -> None:
        first, second = bed.agent.tenant(memory=130 * GIB), bed.agent.tenant(memory=130 * GIB)
        one, other = bed.program(first, "alloc 100000"), bed.program(second)
        assert other.ask("alloc 100000") == "2", "the GPU has 141 GB"
        bed.call("suspend", first)
        assert other.ask("alloc 100000") == "0"
        with pytest.raises(ContainerError, match=r"needs .* MiB"):
            bed.call("resume", first)
        assert bed.status(first)["suspended"][0] > 100000 << 20
        assert other.ask("free") == "0"
        bed.call("resume", first, wait=30.0)
        assert one.ask("free") == "0"

    in_bed(machine, act)


def test_none_is_suspended_where_one_cannot_be(machine: Path) -> None:
    """Managed memory of one process; the other one runs on as well."""

    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        good, bad = bed.program(tenant, "alloc 100"), bed.program(tenant, "managed 10")
        before = settled(tenant)
        with pytest.raises(ContainerError, match=r"its memory cannot be moved: .*NOT_SUPPORTED"):
            bed.call("suspend", tenant)
        assert (good.ask("alloc 2"), bad.ask("alloc 2")) == ("0", "0")
        assert used_by(tenant, before + (4 << 20))
        assert bed.status(tenant)["suspended"] == []

    in_bed(machine, act)


def test_an_agent_that_ends_in_the_middle_loses_nothing(machine: Path) -> None:
    """The one after it brings the processes back, whatever they were in."""

    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        program = bed.program(tenant, "alloc 1000")
        before = settled(tenant)
        bed.call("suspend", tenant)
        number = bed.status(tenant)["id"]
        (record,) = (one for one in records.known(bed.agent.directory) if one.number == number)
        assert record.suspended is not None
        bed.agent.process.kill()
        bed.agent.process.wait()
        records.save(bed.agent.directory, record.replace(suspended=Suspension((before,), 0.0, is_changing=True)))
        bed.agent.process = bed.agent._start()
        assert bed.agent.ready()
        assert used_by(tenant, before)
        assert leftovers.until(lambda: bed.status(tenant)["suspended"] == [], seconds=30)
        assert program.ask("alloc 2") == "0"

    in_bed(machine, act)


def test_a_suspended_tenant_stays_so_under_another_agent(machine: Path) -> None:
    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        program = bed.program(tenant, "alloc 1000")
        before = settled(tenant)
        bed.call("suspend", tenant)
        bed.agent.kill()
        assert bed.agent.ready()
        assert bed.status(tenant)["suspended"] == [before]
        assert tenant.used() == 0
        bed.call("resume", tenant)
        assert program.ask("free") == "0"

    in_bed(machine, act)


def test_what_is_refused_says_why(machine: Path) -> None:
    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        program = bed.program(tenant, "alloc 1000")
        with pytest.raises(InputError, match="timeout"):
            bed.call("suspend", tenant, timeout=0.0)
        bed.call("pause", tenant)
        with pytest.raises(ContainerError, match="is paused, and its work cannot end"):
            bed.call("suspend", tenant)
        bed.call("resume", tenant)
        bed.call("suspend", tenant)
        with pytest.raises(ContainerError, match="is suspended already"):
            bed.call("suspend", tenant)
        with pytest.raises(ContainerError, match="less memory would keep it from coming back"):
            bed.call("set", tenant, spec="mem=1Gi")
        bed.call("set", tenant, spec="mem=10Gi")
        bed.call("resume", tenant)
        assert program.ask("free") == "0"

    in_bed(machine, act)


def test_a_process_that_ends_while_it_is_suspended_leaves_nothing(machine: Path) -> None:
    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        stays, ends = bed.program(tenant, "alloc 100"), bed.program(tenant, "alloc 1000")
        alone = settled(tenant) - (1000 << 20)
        bed.call("suspend", tenant)
        ends.kill()
        bed.call("resume", tenant)
        assert leftovers.until(lambda: tenant.used() < alone, seconds=30), "its context is gone as well"
        assert stays.ask("free") == "0"

    in_bed(machine, act)


def test_the_calls_are_made_with_the_rights_of_the_suspended_process(machine: Path) -> None:
    """Its user and groups and its cgroup: whatever libcuda is made to open, the process could have opened."""

    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        setpriv = ["/usr/bin/setpriv", "--regid", "12346", "--groups", "12347"]
        command = tenant.wrap([*setpriv, str(build() / "cuda_burn"), "20", "4000000000"])
        bed.programs.append(Spoken(command, environment(bed.gpu), seconds=30))
        assert bed.programs[0].line() == "started=1"
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(bed.call, "suspend", tenant, timeout=2.0)
            assert leftovers.until(lambda: bool(helpers()), seconds=30)
            (helper,) = helpers()
            assert leftovers.until(lambda: "12346" in field(helper, "Gid"), seconds=30)
            assert leftovers.until(lambda: int(field(helper, "CapEff")[0], 16) == 1 << 19, seconds=30)
            program = Path(f"/proc/{bed.programs[0].process.pid}")
            assert [field(helper, name) for name in ("Uid", "Gid", "Groups")] == [["0"] * 4, ["12346"] * 4, ["12347"]]
            assert leftovers.until(
                lambda: (helper / "cgroup").read_text() == (program / "cgroup").read_text(), seconds=10
            )
            with pytest.raises(ContainerError, match=r"its work does not end: .*NOT_READY"):
                asked.result(60)
        assert leftovers.until(lambda: not helpers(), seconds=30)
        assert bed.status(tenant)["suspended"] == []

    in_bed(machine, act)


@pytest.mark.parametrize("signal", ["kill", "terminate"])
def test_a_lock_that_outlives_its_agent_is_taken_back(machine: Path, signal: str) -> None:
    """It goes on in the locked process: the next agent waits for it before it says that the tenant runs."""

    def act(bed: Bed) -> None:
        tenant = bed.agent.tenant(memory=20 * GIB)
        command = tenant.wrap([str(build() / "cuda_burn"), "40", "6000000000"])
        bed.programs.append(Spoken(command, environment(bed.gpu), seconds=60))
        assert bed.programs[0].line() == "started=1"
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(bed.call, "suspend", tenant, timeout=60.0)
            assert leftovers.until(lambda: bool(bed.status(tenant)["suspended"]), seconds=30)
            time.sleep(1)
            getattr(bed.agent.process, signal)()
            bed.agent.process.wait()
            with pytest.raises(NvcError):
                asked.result(30)
        bed.agent.process = bed.agent._start()
        assert bed.agent.ready()
        assert leftovers.until(lambda: bed.status(tenant)["suspended"] == [], seconds=30)
        assert leftovers.until(lambda: not helpers(), seconds=30)
        time.sleep(6)  # a kernel takes as long
        done = bed.call("suspend", tenant, timeout=60.0)
        assert done["processes"] == 1, "it was locked, and CUDA refuses to lock it again"

    in_bed(machine, act)


def helpers() -> list[Path]:
    """The processes that make CUDA's calls."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"nvc.agent.checkpointer" in (directory / "cmdline").read_bytes():
                found.append(directory)
    return found


def field(process: Path, name: str) -> list[str]:
    lines = (process / "status").read_text().splitlines()
    return next(line.split()[1:] for line in lines if line.startswith(f"{name}:"))
