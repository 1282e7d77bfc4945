"""Which enforcer a container has, or why it does not start: a table of how it comes by its GPU and its settings.

Every row of enforcement.csv is a real container (runc, with nvc-runtime or without) on the simulated machine, and what
``nvc-py share check`` says of it beforehand.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import NvcError
from nvc.cli.settings import Settings
from nvc.cli.share import check
from nvc.request.injection import ShareRequest
from nvc.share import store
from tests.support import leftovers
from tests.support.agentbed import Held, RunningAgent
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.required import agent, bed, program, tree
from tests.support.runtimes import OciRuntime, Result
from tests.support.simgpu import UUID as SIMULATED
from tests.support.wrapped import Wrapped

__all__ = ["agent", "bed", "program", "tree"]
pytestmark = pytest.mark.system
TABLE = Path(__file__).with_name("enforcement.csv")
UNKNOWN = "615.65.06"
#: Says what it has, and asks for two GiB more than the rows' mem=4Gi.
LOOK = "test -e /run/nvc-share/limits && echo library; rawalloc 4 1024 once; true"
#: Settings of a row that are rules of the node: their key in config.toml.
RULES = ("default", "maximum", "allow-guard-off", "allow-off", "variables", "unknown-driver")


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    gives: str
    runtime: str
    agent: str
    guard: str
    driver: str
    settings: str
    outcome: str
    detail: str

    def said(self, name: str) -> list[str]:
        """The values of a setting, in order."""
        words = (word.partition("=") for word in self.settings.split())
        return [value.replace("UUID", SIMULATED) for key, _, value in words if key == name]

    @property
    def env(self) -> dict[str, str]:
        words = (word.removeprefix("env:").partition("=") for word in self.settings.split() if word.startswith("env:"))
        return {name: value for name, _, value in words}

    @property
    def annotations(self) -> dict[str, str]:
        found = {"nvc.share": "".join(self.said("annotation"))} if self.said("annotation") else {}
        return {**found, "nvc.guard": "off"} if "guardoff" in self.settings.split() else found

    def config(self, directory: str) -> str:
        """The node's config.toml."""
        rules = {key: value for key in RULES for value in self.said(key)}
        quoted = {k: v if v in ("true", "false") else json.dumps(v.strip('"')) for k, v in rules.items()}
        lines = "".join(f"{key} = {value}\n" for key, value in quoted.items())
        return f'[agent]\ndirectory = "{directory}"\n[share]\nguard = "{self.guard}"\n{lines}'


with TABLE.open(newline="") as file:
    ROWS = [Row(**line) for line in csv.DictReader(file, delimiter="|")]


@pytest.fixture(scope="module")
def unknown(agent: RunningAgent) -> str:
    """A machine with a driver that shares do not know; its nodes are not served."""
    return agent.bed.new_machine("h200", driver_version=UNKNOWN)


def hooks(bed: Bed, row: Row, machine: str, config: Path) -> dict[str, list[Hook]]:
    """The hooks in config.json before any runtime sees it: the engine's."""
    where = [f"--sim={bed.machine(machine)}", f"--config={config}"]
    fixed = [[f"--share-fixed={value}"] for value in row.said("fixed")]
    option = [f"--share={value}" for value in row.said("share")]
    env = bed.hook("prestart").env
    if row.gives in ("cdi", "limit"):
        program = str(bed.commands.directory / "nvc-cdi-hook")
        words = ["nvc-cdi-hook", "noop", "then", "share", *where, *option]
        found = {"createContainer": [Hook(program, [*words, *one], env) for one in fixed or [[]]]}
        limit = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/", "--gpu-id", SIMULATED, *where]
        return {**found, "createRuntime": [Hook(program, limit, env)]} if row.gives == "limit" else found
    if row.gives == "hook":
        words = [word for one in fixed for word in one]
        return {"prestart": [Hook(bed.commands.hook, ["nvc-hook", *where, *words, "prestart"], env)]}
    return {}


def container(bed: Bed, row: Row, tree: Path, machine: str, config: Path) -> Container:
    """As an engine makes it: CDI gives nodes and hooks, and NVIDIA_VISIBLE_DEVICES is void.

    limit: the specification is nvidia-ctk's, whose hook makes a share of a variable at createRuntime.
    """
    nodes = sorted(path for path in (bed.machine(machine) / "dev").iterdir() if path.name.startswith("nvidia"))
    mounts = [
        {"destination": f"/dev/{path.name}", "source": str(path), "type": "bind", "options": ["bind", "rw"]}
        for path in nodes
        if row.gives in ("cdi", "limit") and (path.is_file() or path.is_char_device())
    ]
    mig = ["NVIDIA_MIG_CONFIG_DEVICES=all"] if "mig" in row.settings.split() else []
    asked = ("NVIDIA_VISIBLE_DEVICES=void",) if row.gives in ("cdi", "limit") else gpu_env("all")
    return Container(
        tree,
        ("sh", "-c", LOOK),
        (*asked, *mig, *(f"{name}={value}" for name, value in row.env.items())),
        hooks(bed, row, machine, config),
        mounts=mounts,
        annotations=row.annotations,
        capabilities=("CAP_SYS_ADMIN",) if mig else (),
    )


def predicted(row: Row, machine: Path, config: Path) -> tuple[str, str]:
    """(outcome, detail) by ``nvc-py share check``."""
    request = ShareRequest(
        row.annotations.get("nvc.share", ""),
        "".join(row.said("share")),
        row.env,
        str(config),
        guard_off="nvc.guard" in row.annotations,
        fixed=tuple(row.said("fixed")),
    )
    try:
        found: dict[str, Any] = check.answer(Settings(sim=str(machine)), request, ["all"])
    except NvcError as error:
        return "refused", str(error)
    if found["outcome"] != "share":
        return found["outcome"], ""
    held: str = found["enforcer"][
        "nvc-runtime" if row.runtime == "nvc-runtime" and row.agent == "yes" else "other runtimes"
    ]
    return held, found["text"]


@pytest.fixture
def config(bed: Bed) -> Iterator[Path]:
    place = bed.directory("rules") / "config.toml"
    yield place
    place.unlink(missing_ok=True)


def granted(tree: Path) -> list[str]:
    """What the store has of the container with this root."""
    found = []
    for entry in store.entries()[0]:
        with entry:
            if entry.record.rootfs == str(tree):
                found.append(entry.record.text)
    return found


def started(bed: Bed, runc: OciRuntime, row: Row, machine: str, config: Path, one: Container) -> Result:
    if row.runtime == "runc":
        return bed.run(runc, one)
    return Wrapped(bed, runc, config.read_text(), machine=machine).run(one)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_container_has_the_enforcer_of_the_table_or_does_not_start(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, unknown: str, tree: Path, config: Path, row: Row
) -> None:
    machine = Path(agent.machine).name if row.driver == "known" else unknown
    config.write_text(row.config(agent.directory if row.agent == "yes" else str(bed.place / "no-agent")))
    before = len(agent.of("tenant"))
    result = started(bed, runc, row, machine, config, container(bed, row, tree, machine, config))
    in_store = granted(tree)  # until the agent sees that the container has ended
    # The journal is written some time after an event.
    is_guarded = leftovers.until(lambda: len(agent.of("tenant")) > before, seconds=5 if row.outcome == "guard" else 0.2)

    if row.outcome == "refused":
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert row.detail in result.text
    else:
        assert result.code == 0, result.text
        assert ("library" in result.out) == (row.outcome == "library"), result.text
        assert in_store == ([row.detail] if row.detail else [])
    assert is_guarded == (row.outcome == "guard"), result.text
    if row.outcome == "guard":
        assert "failed=0 passed=0" in result.out, f"more than its share: {result.text}"
    if row.outcome == "none":
        assert re.search("failed=0 passed=[^0]", result.out), "the whole GPU: else a guard row shows nothing"

    outcome, detail = predicted(row, bed.machine(machine), config)
    assert outcome == row.outcome
    if row.outcome == "guard":
        assert detail == row.detail


CRI = "io.kubernetes.cri.{}"
ENGINE = {"sandbox-namespace": "team-a", "sandbox-name": "trainer-0", "container-name": "main"}


@pytest.mark.parametrize("gives", ["cdi", "hook", "runtime"])
def test_a_container_has_its_engines_name_whatever_gives_the_share(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, config: Path, gives: str
) -> None:
    row = Row("", gives, "nvc-runtime", "yes", "auto", "known", "annotation=mem=4Gi", "guard", "")
    machine = Path(agent.machine).name
    config.write_text(row.config(agent.directory))
    one = container(bed, row, tree, machine, config)
    named = {CRI.format(key): value for key, value in ENGINE.items()}
    one = replace(one, args=("rawalloc", "4", "1024", "0"), annotations={**one.annotations, **named})
    with Held(Wrapped(bed, runc, config.read_text(), machine=machine), one) as held:
        assert held.line() == "held"
        tenant = agent.tenant(held.name)
        assert tenant is not None
        assert tenant.name == "team-a/trainer-0/main"
        shown = bed.call(bed.commands.nvc, "share", "ls", "--json", check=True)
        rows = {row["container"]: row["name"] for row in json.loads(shown.out)["shares"]}
        assert rows[held.name] == "team-a/trainer-0/main"


def test_the_table_has_forty_rows_of_every_kind() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 40
    for column in ("gives", "runtime", "agent", "guard", "driver", "outcome"):
        assert {getattr(row, column) for row in ROWS} == VALUES[column]
    assert len({(row.gives, row.runtime, row.agent, row.guard, row.driver, row.settings) for row in ROWS}) == len(ROWS)


VALUES = {
    "gives": {"cdi", "limit", "hook", "runtime"},
    "runtime": {"nvc-runtime", "runc"},
    "agent": {"yes", "no"},
    "guard": {"auto", "require", "off"},
    "driver": {"known", "unknown"},
    "outcome": {"guard", "library", "refused", "none"},
}
