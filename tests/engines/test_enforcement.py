"""Which enforcer a container of Docker, Podman or containerd has, or why it does not start.

Every row of enforcement.csv is a container that the engine starts as its users do, on the simulated machine. Those of
tests/system/enforcement.csv are containers of runc alone.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nvc.share import store
from tests.support import launchers
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.cgroupview import named
from tests.support.containerd import Containerd
from tests.support.docker import Docker
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.required import agent, bed, program
from tests.support.runtimes import Result, find

__all__ = ["agent", "bed", "program"]
pytestmark = pytest.mark.engines
TABLE = Path(__file__).with_name("enforcement.csv")
#: Says what it has, and asks for two GiB more than the rows' mem=4Gi. An empty file is what a mount before left.
LOOK = ["sh", "-c", "test -s /run/nvc-share/limits && echo library; rawalloc 4 1024 once; true"]
#: Settings of a row that are rules of the node: their key in config.toml.
RULES = ("default", "maximum", "allow-guard-off")
ALL = "NVIDIA_VISIBLE_DEVICES=all"


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    engine: str
    gives: str
    agent: str
    guard: str
    settings: str
    outcome: str
    detail: str

    def said(self, name: str) -> str:
        """The value of a setting; "": it is not there."""
        words = (word.partition("=") for word in self.settings.split())
        return next((value for key, _, value in words if key == name), "")

    @property
    def env(self) -> list[str]:
        return [word.removeprefix("env:") for word in self.settings.split() if word.startswith("env:")]

    @property
    def annotations(self) -> list[str]:
        share = [f"nvc.share={self.said('annotation')}"] if self.said("annotation") else []
        return [*share, *(["nvc.guard=off"] if "guardoff" in self.settings.split() else [])]


with TABLE.open(newline="") as file:
    ROWS = [Row(**line) for line in csv.DictReader(file, delimiter="|")]


@dataclass
class Node:
    """What the engines' containers meet: an agent, a config.toml of this test's, a root with the program."""

    agent: RunningAgent
    tree: Path
    etc: Path
    started: dict[str, Docker | Containerd] = field(default_factory=dict)

    @property
    def own(self) -> Bed:
        return self.agent.bed

    @property
    def environment(self) -> dict[str, str]:
        return {"NVC_SIM": self.agent.machine, "XDG_CONFIG_HOME": str(self.etc)}

    def configure(self, row: Row) -> None:
        """The node's config.toml: engines and runtimes read it with each container."""
        rules = {key: row.said(key) for key in RULES if row.said(key)}
        lines = "".join(f"{key} = {value if value == 'true' else json.dumps(value)}\n" for key, value in rules.items())
        directory = self.agent.directory if row.agent == "yes" else str(self.own.place / "no-agent")
        (self.etc / "nvc/config.toml").write_text(
            f'[agent]\ndirectory = "{directory}"\n[share]\nguard = "{row.guard}"\n{lines}'
            f"[nvidia-container-runtime]\nruntimes = {json.dumps([find('runc')])}\n"
        )

    def docker(self) -> Docker:
        def make() -> Docker:
            place, programs = self.own.directory("docker"), [str(self.own.commands.directory)]
            engine = Docker(self.own.token, place, programs, self.environment, shares=True)
            engine.write_config()
            words = ("runtime", "configure", "--runtime=docker", f"--config={engine.config}")
            self.own.call(self.own.commands.nvc, *words, check=True)
            return engine

        engine = self.started.get("docker") or self._start("docker", make())
        assert isinstance(engine, Docker)
        return engine

    def containerd(self) -> Containerd:
        def make() -> Containerd:
            engine = Containerd(self.own.token, self.own.directory("containerd"), self.environment, shares=True)
            engine.write_config()
            return engine

        engine = self.started.get("containerd") or self._start("containerd", make())
        assert isinstance(engine, Containerd)
        return engine

    def _start(self, name: str, engine: Docker | Containerd) -> Docker | Containerd:
        self.started[name] = engine  # what fails to start is ended too
        engine.start()
        engine.import_image(self.tree)
        return engine

    def close(self) -> None:
        for engine in self.started.values():
            engine.stop()


@pytest.fixture(scope="module")
def node(agent: RunningAgent, program: Path) -> Iterator[Node]:
    tree, etc = agent.bed.rootfs(), agent.bed.directory("etc")
    shutil.copy(program, tree / "usr/bin/rawalloc")
    (etc / "nvc").mkdir()
    made = Node(agent, tree, etc)
    try:
        yield made
    finally:
        made.close()


def by_docker(node: Node, row: Row) -> Result:
    ways = {"hook": ["--gpus=all"], "runtime": ["--runtime=nvidia", "-e", ALL]}
    asked = [word for one in row.env for word in ("-e", one)]
    return node.docker().run([*ways[row.gives], *asked], LOOK)


def by_containerd(node: Node, row: Row) -> Result:
    notes = [word for one in row.annotations for word in ("--annotation", one)]
    options = [f"--runc-binary={node.own.commands.runtime}", *notes]
    return node.containerd().run(options, node.own.name("ctr"), LOOK, env=[ALL, *row.env])


def specification(node: Node, row: Row) -> Path:
    """Of ``cdi generate``, by this node's config.toml. The simulated machine's nodes are files, so they are mounted."""
    given = [f"--share{way}={row.said(key)}" for way, key in (("-fixed", "fixed"), ("", "share")) if row.said(key)]
    words = [f"--sim={node.agent.machine}", "cdi", "generate", "--format=json", *(given or ["--share"])]
    spec = json.loads(node.own.call(node.own.commands.nvc, *words, check=True).out)
    for edits in (spec.get("containerEdits", {}), *(one["containerEdits"] for one in spec["devices"])):
        nodes = edits.pop("deviceNodes", [])
        mounts = [
            {"hostPath": one.get("hostPath", one["path"]), "containerPath": one["path"], "options": ["rw", "bind"]}
            for one in nodes
        ]
        edits["mounts"] = [*edits.get("mounts", []), *mounts]
        for hook in edits.get("hooks", []):
            hook["env"] = [*hook.get("env", []), f"NVC_SIM={node.agent.machine}"]
            if "share" in hook["args"]:
                hook["args"].append(f"--config={node.etc}/nvc/config.toml")
    place = node.own.directory("cdi") / "nvidia.json"
    place.write_text(json.dumps(spec))
    return place


def by_podman(node: Node, row: Row) -> Result:
    """Podman passes no variable on to hooks and runtimes: they are programs that set them."""
    own, where = node.own, [f"{name}={value}" for name, value in node.environment.items()]
    directory = own.directory("bin")
    hook = launchers.with_options(directory, "nvc-hook", "/usr/bin/env", *where, own.commands.hook)
    runtime = launchers.with_options(directory, "nvc-runtime", "/usr/bin/env", *where, own.commands.runtime)
    view = named("hybrid")
    assert view is not None
    box = PodmanBox(
        own.token, "runc", view, own.directory("podman"), node.environment, preload=own.preload("runc", "hybrid")
    )
    box.prepare()
    paths = [f"--hook-path={hook}", f"--runtime-path={runtime}"]
    mode = [] if row.gives == "hook" else ["--config-mode=config-file"]
    setup = [quoted([own.commands.nvc, "runtime", "configure", "--runtime=podman", *paths, *mode]) + " >/dev/null 2>&1"]
    if row.gives.startswith("cdi"):
        setup.append(quoted(["cp", str(specification(node, row)), "/etc/cdi/nvidia.json"]))
    device, by_runtime = ["--device=nvidia.com/gpu=0"], ["--runtime=nvidia"]
    asked = {
        "hook": ["--env", ALL],
        "runtime": [*by_runtime, "--env", ALL],
        "cdi": device,
        "cdi-runtime": [*by_runtime, *device],
    }
    options = [*asked[row.gives], *(word for one in row.env for word in ("--env", one))]
    # Podman 4.3 reads the words of --annotation as CSV.
    options += [word for one in row.annotations for word in ("--annotation", f'"{one}"')]
    try:
        return box.script(" && ".join(setup), box.run_words(options, node.tree, LOOK))
    finally:
        box.clean()


ENGINES = {"docker": by_docker, "podman": by_podman, "containerd": by_containerd}


def texts() -> dict[str, str]:
    """Entry -> share, of the host's store."""
    found = {}
    for entry in store.entries()[0]:
        with entry:
            found[entry.record.key] = entry.record.text
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_container_has_the_enforcer_of_the_table_or_does_not_start(bed: Bed, node: Node, row: Row) -> None:
    node.configure(row)
    before, tenants = texts(), len(node.agent.of("tenant"))
    result = ENGINES[row.engine](node, row)
    given = [text for key, text in texts().items() if key not in before]

    if row.outcome == "refused":
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert row.detail in result.text
    else:
        assert result.code == 0, result.text
        assert ("library" in result.out) == (row.outcome == "library"), result.text
        assert given == ([row.detail] if row.detail else [])
    assert len(node.agent.of("tenant")) - tenants == (row.outcome == "guard"), result.text
    if row.outcome == "guard":
        assert "failed=0 passed=0" in result.out, f"more than its share: {result.text}"
    if row.outcome == "none":
        assert "failed=0 passed=0" not in result.out, "the whole GPU: else a guard row shows nothing"


def test_each_engine_has_every_outcome_that_it_can_have() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for engine in ENGINES:
        assert {row.outcome for row in ROWS if row.engine == engine} >= {"guard", "library", "refused"}
