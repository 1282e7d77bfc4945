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
from nvc.cli.share import usage

UUID = "GPU-11111111-2222-3333-4444-555555555555"
GIB = 1 << 30


class Node:
    """An agent of one tenant, whose clock is set by hand."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.memory, self.computed_ns, self.stamp = 1000.0, 0, 0, 0
        record = SimpleNamespace(engine_name="ns/pod/c")
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
        self.part = Accounting()

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


def test_an_interval_that_is_cut_counts_by_its_part(tmp_path: Path) -> None:
    accounting.append(str(tmp_path), [Used(100, 200, "c1", "", UUID, 50.0, 1000.0, 7)])
    with (tmp_path / accounting.USAGE).open("ab") as file:
        file.write(b"{damaged\n")
    (found,) = accounting.read(str(tmp_path), 150, 175)
    assert (found.computed, found.byte_seconds) == (12.5, 250.0)
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
    lines = [Used(100, 200, "c1", "n", UUID, 50.0, 100.0 * GIB, 2 * GIB), Used(200, 300, "c1", "n", UUID, 25.0, 0.0, 0)]
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
        "mean_bytes": GIB // 2,
        "peak_bytes": 2 * GIB,
    }
    table = CliRunner().invoke(usage.usage, words).output
    assert "c1" in table
    assert "75.0" in table


@pytest.mark.parametrize(
    ("word", "found"), [("web/server", ["c1"]), ("server", ["c1", "c2"]), ("erver", []), ("c2", ["c2"])]
)
def test_a_container_is_named_as_its_engine_did(tmp_path: Path, word: str, found: list[str]) -> None:
    names = {"c1": "team/web/server", "c2": "team/db/server"}
    accounting.append(str(tmp_path), [Used(100, 200, key, name, UUID, 1.0, 0.0, 0) for key, name in names.items()])
    words = ["--since=@0", f"--container={word}", f"--agent={tmp_path}/control", "--json"]
    assert [one["container"] for one in json.loads(CliRunner().invoke(usage.usage, words).output)] == found


def test_nothing_to_sum_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(usage.usage, [f"--agent={tmp_path}/control"])
    assert done.exit_code == 0
    assert f"{tmp_path}/{accounting.USAGE} has no guarded container since then" in done.output
