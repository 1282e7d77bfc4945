"""The bundle of a pod with a claim's CDI devices, as containerd hands it to a runtime: the guard holds it, or it does
not start."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import pod_bundle
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.isolation import pid_namespace
from tests.support.leftovers import until
from tests.support.required import ONCE, agent, bed, behind, is_beyond, program, rules, tree
from tests.support.runtimes import OciRuntime

__all__ = ["agent", "bed", "program", "tree"]
pytestmark = pytest.mark.system
Edit = Callable[[Path], None]


@pytest.fixture
def prepare_pod(bed: Bed, agent: RunningAgent, tree: Path) -> Edit:
    """Makes a bundle that of the pod."""
    config = rules(bed.directory("etc"), agent, "auto")
    cdi, hook = bed.directory("cdi"), str(bed.commands.directory / "nvc-cdi-hook")
    names = pod_bundle.prepared(cdi, agent.machine, hook, "4Gi", 30)
    return lambda bundle: pod_bundle.write(bundle, tree, ONCE, cdi, names, [f"--config={config}"])


def test_the_guard_holds_it(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, prepare_pod: Edit) -> None:
    before = len(agent.of("tenant"))

    result = behind(bed, runc, agent).run(Container(tree, ONCE), edit=prepare_pod)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert until(lambda: len(agent.of("tenant")) > before, seconds=10), agent.log.read_text()
    [tenant] = agent.of("tenant")[before:]
    assert "mem=4Gi,weight=300" in str(tenant["gpus"])


def test_its_hooks_are_one_process(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, prepare_pod: Edit
) -> None:
    """Each is an interpreter's start, in which the pod waits."""
    bundle = Path()

    def edit(place: Path) -> None:
        nonlocal bundle
        bundle = place
        prepare_pod(place)
        assert len(_hooks(place)) > 1

    assert behind(bed, runc, agent).run(Container(tree, ONCE), edit=edit).code == 0
    assert len(_hooks(bundle)) == 1


def test_it_starts_in_its_pods_pid_namespace(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, prepare_pod: Edit
) -> None:
    """shareProcessNamespace. runc tells hooks the number there, which /proc has for another process."""
    before = len(agent.of("tenant"))

    with pid_namespace() as pause:

        def edit(place: Path) -> None:
            prepare_pod(place)
            config = json.loads((place / "config.json").read_text())
            config["linux"]["namespaces"] = [
                one | ({"path": f"/proc/{pause}/ns/pid"} if one["type"] == "pid" else {})
                for one in config["linux"]["namespaces"]
            ]
            (place / "config.json").write_text(json.dumps(config))

        result = behind(bed, runc, agent).run(Container(tree, ONCE), edit=edit)

    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert until(lambda: len(agent.of("tenant")) > before, seconds=10), agent.log.read_text()
    [tenant] = agent.of("tenant")[before:]
    assert "mem=4Gi,weight=300" in str(tenant["gpus"])


def test_an_agent_that_is_gone_while_ldconfig_runs_refuses_it(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, prepare_pod: Edit
) -> None:
    """It knew the container when nvc-runtime asked, and does not answer its hooks."""
    control, away = f"{agent.directory}/control", f"{agent.directory}/away"

    def edit(place: Path) -> None:
        prepare_pod(place)
        config = json.loads((place / "config.json").read_text())
        command = ["sh", "-c", f"mv {control} {away}; rm -f {tree}/etc/ld.so.cache"]
        config["hooks"]["createRuntime"] = [{"path": "/bin/sh", "args": command, "env": ["PATH=/usr/bin:/bin"]}]
        (place / "config.json").write_text(json.dumps(config))

    try:
        result = behind(bed, runc, agent).run(Container(tree, ONCE), edit=edit)
    finally:
        os.rename(away, control)

    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "the agent does not confirm that it guards the container" in result.text
    assert not [name for name in os.listdir(tree / "etc") if name.startswith("ld.so.cache")]


def _hooks(bundle: Path) -> list[object]:
    found: list[object] = json.loads((bundle / "config.json").read_text())["hooks"]["createContainer"]
    return found


def test_without_nvc_runtime_it_does_not_start(bed: Bed, runc: OciRuntime, tree: Path, prepare_pod: Edit) -> None:
    """Attack: another runtime class."""
    bundle = bed.bundle(Container(tree, ONCE))
    prepare_pod(bundle)

    result = runc.run(bundle, bed.name("c"))

    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "requires a guard for shares, and this container has none" in result.text
