"""Which enforcer a container of Docker, Podman, containerd or CRI-O has, or why it does not start.

Every row of enforcement.csv is a container that the engine starts as its users do, on the simulated machine: the
engines of this machine, and those of Debian sid. Rows of tests/system/enforcement.csv are containers of runc alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nvc.share import store
from nvc.share.entry import StoredShare
from tests.support import agentbed, leftovers
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.enforced import ENGINES, Node, Row, rows
from tests.support.required import agent, bed, program
from tests.support.runtimes import Result

__all__ = ["agent", "bed", "program"]
pytestmark = pytest.mark.engines
ROWS = rows(Path(__file__).with_name("enforcement.csv"))
#: Says what it has, and asks for two GiB more than the rows' mem=4Gi, as a static program that no preloaded library
#: reaches, and as one that it does. An empty file is what a mount before left.
LOOK = [
    "sh",
    "-c",
    "test -s /run/nvc-share/limits && echo library; rawalloc 4 1024 once; echo linked $(linked 4 1024 once); true",
]
#: Engines that Debian 12 does not have, or not with all ways of the table.
NEWER = ("cri", "crio")
ON_BOTH = pytest.mark.parametrize("node", ["here", "sid"], indirect=True)
ON_SID = pytest.mark.parametrize("node", ["sid"], indirect=True)
HELD = "failed=0 passed=0"


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, agent: RunningAgent, program: Path) -> Iterator[Node]:
    tree, etc = agent.bed.rootfs(), agent.bed.directory("etc")
    shutil.copy(program, tree / "usr/bin/rawalloc")
    linked = ["cc", "-std=gnu11", "-O1", "-o", str(tree / "usr/bin/linked"), str(agentbed.SOURCE)]
    subprocess.run(linked, check=True)
    (etc / "nvc").mkdir()
    made = Node(agent, tree, etc, "" if request.param == "here" else request.param, agent.bed.name(request.param))
    try:
        yield made
    finally:
        made.close()


def entries(node: Node) -> dict[str, StoredShare]:
    """The records of the bed's containers in the host's store."""
    found = {}
    for entry in store.entries()[0]:
        with entry:
            if node.own.token in entry.record.container + entry.record.rootfs:
                found[entry.record.key] = entry.record
    return found


class Running:
    """A row's container that runs in a thread: what its engine said, and its entries in the store."""

    def __init__(self, node: Node, row: Row, command: Sequence[str]) -> None:
        self.node = node
        self.results: list[Result] = []
        self._before = entries(node)
        node.configure(row)
        run = ENGINES[row.engine]
        self.thread = threading.Thread(target=lambda: self.results.append(run(node, row, command)))
        self.thread.start()

    def new(self) -> dict[str, StoredShare]:
        return {key: record for key, record in entries(self.node).items() if key not in self._before}

    def end(self) -> tuple[Result, dict[str, StoredShare]]:
        """What it gave, and all entries that it had: the agent removes those of containers that have ended."""
        found = self.new()
        while self.thread.is_alive():
            found |= self.new()
            self.thread.join(0.02)
        return self.results[0], found | self.new()


@ON_BOTH
@pytest.mark.parametrize("row", [row for row in ROWS if row.engine not in NEWER], ids=lambda row: row.name)
def test_a_container_has_the_enforcer_of_the_table_or_does_not_start(bed: Bed, node: Node, row: Row) -> None:
    check(node, row)


@ON_SID
@pytest.mark.parametrize("row", [row for row in ROWS if row.engine in NEWER], ids=lambda row: row.name)
def test_a_container_of_kubelets_has_the_enforcer_of_the_table_or_does_not_start(
    bed: Bed, node: Node, row: Row
) -> None:
    check(node, row)


def check(node: Node, row: Row) -> None:
    tenants = len(node.agent.of("tenant"))
    result, found = Running(node, row, LOOK).end()
    given = [record.text for record in found.values()]

    if row.outcome == "refused":
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert row.detail in result.text
        assert row.detail, "any failure would do"
    else:
        assert result.code == 0, result.text
        assert ("library" in result.out) == (row.outcome == "library"), result.text
        assert given == ([row.detail] if row.detail else [])
    assert len(node.agent.of("tenant")) - tenants == (row.outcome == "guard"), result.text
    static, _, linked = result.out.partition("linked ")
    if row.outcome == "guard":
        assert HELD in static, f"more than its share: {result.text}"
    if row.outcome in ("guard", "library"):
        assert HELD in linked, f"more than its share: {result.text}"
    if row.outcome == "none":
        assert HELD not in result.out, "the whole GPU: else a guard row shows nothing"


#: Of each engine, the first row with each enforcer.
STAYING = {(row.engine, row.outcome): row for row in reversed(ROWS) if row.outcome in ("guard", "library")}


@ON_BOTH
@pytest.mark.parametrize(("engine", "enforcer"), [pair for pair in STAYING if pair[0] not in NEWER])
def test_share_get_names_the_enforcer(bed: Bed, node: Node, engine: str, enforcer: str) -> None:
    look(bed, node, STAYING[engine, enforcer])


@ON_SID
@pytest.mark.parametrize(("engine", "enforcer"), [pair for pair in STAYING if pair[0] in NEWER])
def test_share_get_names_the_enforcer_of_kubelets(bed: Bed, node: Node, engine: str, enforcer: str) -> None:
    look(bed, node, STAYING[engine, enforcer])


def look(bed: Bed, node: Node, row: Row) -> None:
    """While the container runs, by its name in the store."""
    running = Running(node, row, ["sleep", "50"])
    try:
        assert leftovers.until(lambda: bool(running.new()), seconds=40), running.results
        (key,) = running.new()
        get = ("share", "get", key, "--json", f"--agent={node.agent.directory}/control")
        # The entry is there before the container's guard is.
        assert leftovers.until(lambda: is_held(bed, get, row.outcome), seconds=20), bed.call(
            bed.commands.nvc, *get
        ).text
    finally:
        for record in running.new().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGKILL)
        running.end()


def is_held(bed: Bed, command: Sequence[str], enforcer: str) -> bool:
    result = bed.call(bed.commands.nvc, *command)
    rows = json.loads(result.out) if result.code == 0 else []
    return [("guard" if one["guard"] else "library", one["limit"]) for one in rows] == [(enforcer, 4 << 30)]


def test_each_engine_has_every_outcome_that_it_can_have() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for engine in ENGINES:
        assert {row.outcome for row in ROWS if row.engine == engine} >= {"guard", "library", "refused"}
