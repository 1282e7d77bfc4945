"""What tenants used is written down, in intervals, and summed for a time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from nvc.agent import accounting
from nvc.agent.accounting import Accounting, Used
from nvc.agent.journal import Journal
from nvc.agent.state.records import Suspension
from nvc.base.errors import AgentError
from nvc.cli.share import usage

UUID = "GPU-11111111-2222-3333-4444-555555555555"
GIB = 1 << 30


class Counters:
    """GPUs' counters as a test sets them: UUID -> millijoules; None: they cannot be read."""

    def __init__(self) -> None:
        self.found: dict[str, int] | None = {}
        self.reads = self.ends = 0

    async def read(self) -> dict[str, int]:
        self.reads += 1
        if self.found is None:
            raise AgentError("not read")
        return dict(self.found)

    async def end(self) -> None:
        self.ends += 1


class Node:
    """An agent of one tenant, whose clock is set by hand."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counters = Counters()
        self.now, self.memory, self.computed_ns, self.stamp = 1000.0, 0, 0, 0
        record = SimpleNamespace(engine_name="ns/pod/c", suspended=None)
        gpus = (SimpleNamespace(uuid=UUID),)
        self.tenant: Any = SimpleNamespace(number=1, name="c1", record=record, limits=SimpleNamespace(gpus=gpus))
        self.warnings: list[dict[str, object]] = []
        journal = Journal(-1)
        journal.listen(self.warnings.append)
        self.agent: Any = SimpleNamespace(
            tenants=[self.tenant],
            supervisors=SimpleNamespace(stamp=lambda _: (self.stamp, 0, 0), status=self.status),
            options=SimpleNamespace(directory=str(directory)),
            journal=journal,
            computed=lambda *_: (None, self.computed_ns),
        )
        monkeypatch.setattr(accounting, "time", SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now))
        self.part = self.other()

    def other(self) -> Accounting:
        """The part of another agent."""
        counters: Any = self.counters
        return Accounting(counters)

    def status(self, number: int) -> Any:
        return SimpleNamespace(gpus=[SimpleNamespace(memory=self.memory)])

    def goes_on(self, seconds: float, *, memory: int, computed: float) -> None:
        """It has ``memory`` from now on, and has computed so many seconds at the end."""
        self.memory, self.stamp = memory, self.stamp + 1
        self.part.look()
        self.now, self.computed_ns = self.now + seconds, self.computed_ns + int(computed * 1e9)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_memory_is_integrated_and_computed_time_is_of_the_interval(node: Node, tmp_path: Path) -> None:
    async def inside() -> None:
        await node.part.start(node.agent)
        node.goes_on(10, memory=2 * GIB, computed=3.0)
        node.goes_on(30, memory=6 * GIB, computed=5.0)
        await node.part._usage({}, node.agent)
        node.goes_on(10, memory=1 * GIB, computed=1.0)
        node.part.gone(node.tenant)
        node.agent.tenants = []
        await node.part.stop()

    asyncio.run(inside())
    first, last = accounting.read(str(tmp_path), 0, 1e12)
    assert (first.begin, first.end, first.computed, first.peak) == (1000, 1040, 8.0, 6 * GIB)
    assert first.byte_seconds == (2 * 10 + 6 * 30) * GIB
    assert (last.begin, last.end, last.computed, last.name) == (1040, 1050, 1.0, "ns/pod/c")


def test_memory_that_is_suspended_between_two_looks_is_not_counted(node: Node, tmp_path: Path) -> None:
    """Looked at every five seconds, 40 GiB that came and went every second were a fifth off."""

    async def inside() -> None:
        await node.part.start(node.agent)
        for suspended, memory in ((None, 4), (Suspension((4,), 0.0, is_changing=True), 3), (Suspension((4,), 0.0), 0)):
            node.tenant.record.suspended = suspended
            node.goes_on(1, memory=memory * GIB, computed=0.0)
        node.tenant.record.suspended = None
        node.goes_on(1, memory=4 * GIB, computed=0.0)
        await node.part._usage({}, node.agent)

    asyncio.run(inside())
    (found,) = accounting.read(str(tmp_path), 0, 1e12)
    assert found.byte_seconds == (4 + 3 + 0 + 4) * GIB


def test_an_interval_that_is_cut_counts_by_its_part(tmp_path: Path) -> None:
    accounting.append(str(tmp_path), [Used(100, 200, "c1", "", UUID, 50.0, 1000.0, 7, 80.0)])
    with (tmp_path / accounting.USAGE).open("ab") as file:
        file.write(b"{damaged\n")
    (found,) = accounting.read(str(tmp_path), 150, 175)
    assert (found.computed, found.byte_seconds) == (12.5, 250.0)
    assert found.energy == 20.0
    assert not list(accounting.read(str(tmp_path), 200, 300))


def test_a_full_file_is_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "LIMIT", 100)
    for number in range(6):
        accounting.append(str(tmp_path), [Used(number, number + 1, f"c{number}", "", UUID, 1.0, 1.0, 1)])
    assert [used.container for used in accounting.read(str(tmp_path), 0, 1e12)] == ["c4", "c5"]


def test_a_disk_that_is_full_is_said_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def inside() -> None:
        await node.part.start(node.agent)
        for _ in range(3):
            node.goes_on(700, memory=GIB, computed=1.0)
            node.part.look()
            await asyncio.sleep(0.05)

    monkeypatch.setattr(accounting, "append", full)
    asyncio.run(inside())
    assert [one["event"] for one in node.warnings] == ["warning"]


def test_the_command_sums_by_container(tmp_path: Path) -> None:
    lines = [Used(100, 200, "c1", "n", UUID, 50.0, 100.0 * GIB, 2 * GIB, 7200.5)]
    lines += [Used(200, 300, "c1", "n", UUID, 25.0, 0.0, 0)]
    accounting.append(str(tmp_path), [*lines, Used(100, 200, "d", "", UUID, 1.0, 0.0, 0)])
    words = ["--since=@0", "--container=c", f"--agent={tmp_path}/control"]
    done = CliRunner().invoke(usage.usage, [*words, "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.output)
    assert found == {
        "container": "c1",
        "name": "n",
        "gpu": UUID,
        "seconds": 200.0,
        "computed_seconds": 75.0,
        "energy_joules": 7200.5,
        "mean_bytes": GIB // 2,
        "peak_bytes": 2 * GIB,
    }
    table = CliRunner().invoke(usage.usage, words).output
    assert "c1" in table
    assert "75.0      2.0 Wh" in table
    unknown = CliRunner().invoke(usage.usage, ["--since=@0", "--container=d", f"--agent={tmp_path}/control"])
    assert unknown.output.splitlines()[1].split()[3:6] == ["100", "1.0", "-"]


@pytest.mark.parametrize(
    ("word", "found"), [("web/server", ["c1"]), ("server", ["c1", "c2"]), ("erver", []), ("c2", ["c2"])]
)
def test_a_container_is_named_as_its_engine_did(tmp_path: Path, word: str, found: list[str]) -> None:
    names = {"c1": "team/web/server", "c2": "team/db/server"}
    accounting.append(str(tmp_path), [Used(100, 200, key, name, UUID, 1.0, 0.0, 0) for key, name in names.items()])
    words = ["--since=@0", f"--container={word}", f"--agent={tmp_path}/control", "--json"]
    assert [one["container"] for one in json.loads(CliRunner().invoke(usage.usage, words).output)] == found


def test_nothing_to_sum_is_said(tmp_path: Path) -> None:
    for said in ("does not exist", "has no guarded container since then"):
        done = CliRunner().invoke(usage.usage, [f"--agent={tmp_path}/control"])
        assert done.exit_code == 0
        assert f"{tmp_path}/{accounting.USAGE} {said}; the agent writes it when " in done.output
        accounting.append(str(tmp_path), [Used(100, 200, "c", "", UUID, 1.0, 0.0, 0)])


async def goes_on(node: Node, part: Accounting, seconds: float, *, computed: float, watts: int) -> None:
    """A reading follows."""
    node.now, node.computed_ns = node.now + seconds, node.computed_ns + int(computed * 1e9)
    if node.counters.found:
        node.counters.found[UUID] += int(1000 * seconds * watts)
    part.look()
    await asyncio.sleep(0.01)


def test_the_last_line_of_a_container_has_the_energy_up_to_its_end(node: Node, tmp_path: Path) -> None:
    async def inside() -> None:
        node.counters.found = {UUID: 7_000_000}
        await node.part.start(node.agent)
        await goes_on(node, node.part, 0, computed=0, watts=0)
        await goes_on(node, node.part, 10, computed=5, watts=200)
        assert node.part.energy(node.tenant, UUID) == 1000.0
        node.now, node.computed_ns = node.now + 2, node.computed_ns + 10**9
        node.part.gone(node.tenant)
        node.agent.tenants = []
        node.computed_ns = 0  # the driver's samples of it are forgotten
        node.counters.found[UUID] += 2 * 300_000
        await goes_on(node, node.part, 0, computed=0, watts=0)
        assert node.part.gpu_energy(UUID) == 2000.0 + 600.0
        await node.part.stop()

    asyncio.run(inside())
    (line,) = accounting.read(str(tmp_path), 0, 1e12)
    assert (line.end, line.computed) == (1012, 6.0)
    assert line.energy == 1000.0 + 600.0 / 2


def test_energy_of_two_agents_is_counted_once(node: Node, tmp_path: Path) -> None:
    """Nothing reads the counter between them."""

    async def inside() -> None:
        node.counters.found = {UUID: 7_000_000}
        await node.part.start(node.agent)
        await goes_on(node, node.part, 0, computed=0, watts=0)
        await goes_on(node, node.part, 10, computed=10, watts=100)
        await node.part.stop()
        node.now, node.computed_ns = node.now + 60, 0
        node.counters.found[UUID] += 60 * 100_000
        other = node.other()
        await other.start(node.agent)
        await goes_on(node, other, 0, computed=0, watts=0)
        await goes_on(node, other, 10, computed=5, watts=100)
        await other.stop()

    asyncio.run(inside())
    assert [line.energy for line in accounting.read(str(tmp_path), 0, 1e12)] == [1000.0, 500.0]


@pytest.mark.parametrize("found", [{}, None], ids=["no GPU counts it", "it cannot be read"])
def test_without_the_counter_energy_is_not_known(node: Node, tmp_path: Path, found: dict[str, int] | None) -> None:
    async def inside() -> None:
        node.counters.found = found
        await node.part.start(node.agent)
        for _ in range(5):
            await goes_on(node, node.part, 6, computed=3, watts=100)
        assert node.counters.reads == 1, "the next try is later"
        assert node.part.energy(node.tenant, UUID) is None
        node.part.gone(node.tenant)
        node.agent.tenants = []
        await node.part.stop()

    asyncio.run(inside())
    (line,) = accounting.read(str(tmp_path), 0, 1e12)
    assert (line.computed, line.energy) == (15.0, None)
    assert len(node.warnings) == (found is None)


def test_without_containers_nothing_is_read(node: Node) -> None:
    async def inside() -> None:
        node.counters.found = {UUID: 0}
        await node.part.start(node.agent)
        await goes_on(node, node.part, 0, computed=0, watts=0)
        node.part.gone(node.tenant)
        node.agent.tenants = []
        for _ in range(3):
            await goes_on(node, node.part, 6, computed=0, watts=100)
        reads, ends = node.counters.reads, node.counters.ends
        for _ in range(3):
            await goes_on(node, node.part, 600, computed=0, watts=100)
        assert (node.counters.reads, node.counters.ends) == (reads, ends)
        assert ends == 1

    asyncio.run(inside())


def test_a_reading_that_takes_long_keeps_nothing_waiting(node: Node, tmp_path: Path) -> None:
    async def never() -> dict[str, int]:
        await asyncio.sleep(3600)
        return {}

    async def inside() -> None:
        node.counters.read = never  # type: ignore[method-assign]
        await node.part.start(node.agent)
        for _ in range(3):
            await goes_on(node, node.part, 300, computed=100, watts=100)
        await asyncio.sleep(0.1)
        node.part._reading.cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)

    asyncio.run(inside())
    assert [line.computed for line in accounting.read(str(tmp_path), 0, 1e12)] == [300.0]
