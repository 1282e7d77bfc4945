"""Containers under the agent's guard, started by nvc-runtime with runc and crun on a simulated machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvc import __version__
from nvc.base.errors import InputError
from nvc.cli.share.events import line
from nvc.share.protocol import Client
from tests.support import leftovers, registered
from tests.support.agentbed import Held, RunningAgent, build_rawalloc
from tests.support.attacks import SOURCES as ATTACKS
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.opened import names
from tests.support.runtimes import OciRuntime
from tests.support.served import served_machine
from tests.support.tenants import build_static
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system

GIB = 1 << 30


@pytest.fixture
def machine(bed: Bed) -> Iterator[str]:
    """A machine of its own whose nodes are served until the test ends."""
    with served_machine(bed) as name:
        yield name


@pytest.fixture
def agent(bed: Bed, machine: str) -> Iterator[RunningAgent]:
    with RunningAgent(bed, machine) as running:
        yield running


@pytest.fixture
def tree(bed: Bed) -> Path:
    tree = bed.rootfs()
    build_rawalloc(tree / "usr/bin/rawalloc")
    return tree


def tenant(tree: Path, *args: str, share: str = "mem=4Gi", **annotations: str) -> Container:
    told = {"nvc.share": share, **{key.replace("_", "."): value for key, value in annotations.items()}}
    return Container(tree, ["rawalloc", *args], gpu_env("all"), annotations=told)


def behind(bed: Bed, runtime: OciRuntime, agent: RunningAgent, config: str = "") -> Wrapped:
    return Wrapped(bed, runtime, f"{agent.settings}\n{config}", machine=Path(agent.machine).name)


def empty(agent: RunningAgent) -> bool:
    return leftovers.until(lambda: not agent.status().tenants, seconds=30)


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v1")])
def test_a_static_program_gets_its_share_and_no_more(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str
) -> None:
    result = behind(bed, ask(name, view), agent).run(tenant(tree, "4", "1024", "1"))

    assert (result.code, result.complaints) == (0, ""), result.text
    assert "failed=0 passed=0" in result.out
    assert empty(agent)
    assert leftovers.until(lambda: len(agent.of("gone")) == 1, seconds=20), "written when its monitor has ended"
    (gone,) = agent.of("gone")
    assert gone["denials"]["over-quota"] >= 2
    (denied, *_) = agent.of("denial")
    assert (denied["container"], denied["reason"], denied["number"]) == (gone["container"], "over-quota", "0x40")
    assert {one["program"] for one in agent.of("denial")} <= {"rawalloc", ""}
    assert "rawalloc" in {one["program"] for one in agent.of("denial")}, "it ran on for a second"
    shown = line(denied)
    assert "\n" not in shown
    assert f"container={denied['container']}" in shown and "reason=over-quota" in shown and "program=" in shown
    assert len(agent.of("denial")) < 10, "what is repeated is counted"
    assert list((Path(agent.directory) / "tenants").iterdir()) == []


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v1")])
def test_a_process_put_into_the_container_is_under_the_same_quota_which_changes_while_it_runs(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str
) -> None:
    wrapped = behind(bed, ask(name, view), agent)
    with Held(wrapped, tenant(tree, "4", "1024", "0")) as held:
        assert held.line() == "held"
        full = held.execute("rawalloc", "0", "1024", "0.05")
        assert (full.code, "failed=0 passed=0" in full.out) == (0, True), full.text
        known = agent.tenant(held.name)
        assert known is not None
        assert (known.gpus[0].limit, known.gpus[0].memory, known.kind) == (4 * GIB, 4 * GIB, "guard")

        assert agent.call("set", container=held.name, spec="mem=6Gi")["gpus"][0][1].startswith("mem=6Gi")
        more = held.execute("rawalloc", "2", "1024", "0.05")
        assert (more.code, "failed=0 passed=0" in more.out) == (0, True), more.text
        # The limits file decides: a change without the agent is in force as well.
        bed.call(bed.commands.nvc, "share", "set", held.name, "mem=5Gi", check=True)
        assert leftovers.until(lambda: agent.status().tenants[0].gpus[0].limit == 5 * GIB, seconds=30)
        one = held.execute("rawalloc", "1", "1024", "0.05")
        assert (one.code, "failed=0 passed=0" in one.out) == (0, True), one.text
        assert leftovers.until(lambda: len(agent.of("listener")) == 4, seconds=30), agent.of("listener")
    assert empty(agent)


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v1")])
def test_no_program_in_a_container_reaches_the_mmap_that_no_filter_sees(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str
) -> None:
    """Neither its own nor one that is put into it. With that entry managed memory would not be announced."""
    build_static(ATTACKS[0], tree / "usr/bin/attack", *map(str, ATTACKS[1:]))
    wrapped = behind(bed, ask(name, view), agent)
    container = replace(tenant(tree, share="mem=4Gi"), args=["attack", "unseen"])
    with Held(wrapped, container) as held:
        assert held.line() == "mapped=38", "ENOSYS"
        assert held.line() == "pieces=4"
    with Held(wrapped, tenant(tree, "1", "1024", "0")) as held:
        assert held.line() == "held"
        later = held.execute("attack", "unseen")
        assert later.out.startswith("mapped=38\n"), later.text
    assert empty(agent)


def test_two_containers_have_their_own_shares_and_a_kill_leaves_nothing(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    wrapped = behind(bed, runc, agent)
    with Held(wrapped, tenant(tree, "2", "1024", "0", share="mem=2Gi")) as first:
        assert first.line() == "held"
        with Held(wrapped, tenant(tree, "3", "1024", "0", share="mem=3Gi")) as second:
            assert second.line() == "held"
            assert leftovers.until(
                lambda: (
                    {one.container: one.gpus[0].memory for one in agent.status().tenants}
                    == {first.name: 2 * GIB, second.name: 3 * GIB}
                ),
                seconds=30,
            )
            second.kill()
            assert leftovers.until(lambda: agent.tenant(second.name) is None, seconds=30)
            # Here still: leaving the second one's context deletes every container of the runtime.
            (left,) = agent.status().tenants
            assert (left.container, left.gpus[0].memory) == (first.name, 2 * GIB)
            code, said = first.end()
            assert (code, "failed=0 passed=0" in said) == (0, True), said
    assert empty(agent)
    assert agent.process is not None
    descriptors = names(agent.process.pid)
    assert descriptors
    assert not [name for name in descriptors if "seccomp" in name]


def test_a_container_is_paused_and_resumed(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "1", "1024", "0", share="mem=1Gi")) as held:
        assert held.line() == "held"
        agent.call("pause", container=held.name[:-1] if len(agent.status().tenants) == 1 else held.name)
        paused = agent.tenant(held.name)
        assert paused is not None
        assert paused.paused
        agent.call("resume", container=held.name)
        assert not agent.status().tenants[0].paused
        with pytest.raises(InputError, match="no container"):
            agent.call("pause", container="unknown")
        code, said = held.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said


def test_a_change_is_in_force_when_its_command_returns_and_within_20_ms(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    control = f"{agent.directory}/control"
    with Held(behind(bed, runc, agent), tenant(tree, "1", "1024", "0", share="mem=1Gi")) as held:
        assert held.line() == "held"

        def share(*words: str) -> str:
            return bed.call(bed.commands.nvc, "share", *words, "--agent", control, check=True).out

        assert "in force: the agent holds it" in share("set", held.name, "mem=3Gi")
        with Client(control) as client:
            for size in range(10):
                client.call("set", container=held.name, spec=f"mem={size + 4}Gi,weight={size + 1}")
                assert agent.status().tenants[0].gpus[0].limit == (size + 4) * GIB
        # The first program holds one, and there are thirteen.
        more = held.execute("rawalloc", "12", "1024", "0.05")
        assert (more.code, "failed=0 passed=0" in more.out) == (0, True), more.text
        assert share("pause", held.name) == f"{held.name[:12]} is paused: the agent holds it\n"
        assert agent.status().tenants[0].paused
        assert "is paused already" in share("pause", held.name)
        share("resume", held.name)
        assert not agent.status().tenants[0].paused
        assert len(agent.of("set")) == 11


def test_an_agent_that_ends_changes_nothing_for_a_container(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        assert agent.stop() == 0
        assert not Path(agent.directory, "listen").exists(), "a container that starts now is told"
        code, said = held.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said
    agent.start()
    assert empty(agent)


@pytest.mark.parametrize("runs", [True, False], ids=["with an agent", "while it is away"])
def test_what_a_guarded_container_holds_is_shown(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, runs: bool
) -> None:
    def seen(*words: str) -> Any:
        said = bed.call(bed.commands.nvc, *words, "--json", "--agent", f"{agent.directory}/control")
        assert (said.code, "no agent listens" in said.err) == ((0, False) if runs else (1, True)), said.text
        return json.loads(said.out)

    with Held(behind(bed, runc, agent), tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        if not runs:
            assert agent.stop() == 0

        def is_measured() -> bool:
            return all(one["memory"] >= 2 * GIB for one in seen("share", "get", held.name)[0]["processes"])

        assert leftovers.until(is_measured, seconds=20), "the prober goes on, and asks twice a second"
        # Other workers' containers are in the same store.
        (listed,) = (row for row in seen("share", "ls")["shares"] if row["container"] == held.name)
        (got,) = seen("share", "get", held.name)
        for row in (listed, got):
            assert (row["used"], row["limit"], row["guard"]) == (2 * GIB, 2 * GIB, __version__)
            (process,) = row["processes"]
            assert (process["pid"], process["name"], process["memory"] >= 2 * GIB) == (1, "rawalloc", True)
        shown = [one for gpu in seen("top", "--once")["gpus"] for one in gpu["shares"]]
        (share,) = (one for one in shown if one["container"] == held.name)
        assert (share["enforcer"], share["memory"]) == ("guard", 2 * GIB)
        if not runs:
            text = bed.call(bed.commands.nvc, "top", "--once", "--agent", f"{agent.directory}/control").out
            assert "no agent: guards go on without it" in text
    if not runs:
        agent.start()
    assert empty(agent)


def test_the_next_agent_finds_a_container_again(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        agent.kill()
        agent.start()
        assert agent.of("ready")[-1]["tenants"] == 1
        known = agent.tenant(held.name)
        assert known is not None
        assert (known.gpus[0].limit, known.gpus[0].memory) == (2 * GIB, 2 * GIB)
        agent.call("set", container=held.name, spec="mem=3Gi")
        more = held.execute("rawalloc", "1", "1024", "0.05")
        assert (more.code, "failed=0 passed=0" in more.out) == (0, True), more.text
    assert empty(agent)


def test_a_listener_without_a_share_ends_the_container_and_says_why(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    said = bed.call(bed.commands.nvc, "seccomp", "--listener", f"{agent.directory}/listen", check=True).out
    bundle, name = bed.bundle(Container(tree, ["/bin/sh", "-c", "sleep 20"], ())), bed.name("c")
    config = json.loads((bundle / "config.json").read_text())
    config["linux"]["seccomp"] = json.loads(said)
    (bundle / "config.json").write_text(json.dumps(config))
    registered.ask(f"{agent.directory}/control", name, bundle=str(bundle))
    result = runc.run(bundle, name)

    assert result.code != 0
    # It is told when the container has been ended.
    assert leftovers.until(lambda: bool(agent.of("refused")), seconds=30)
    (refused,) = agent.of("refused")
    assert refused["ended"] is True
    assert "has no share" in refused["message"]
    assert not agent.status().tenants


def test_a_node_that_requires_the_guard_starts_nothing_without_an_agent(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    agent.stop()
    config = '[share]\nguard = "require"'
    result = behind(bed, runc, agent, config).run(tenant(tree, "4", "1024", "0.1"))
    assert result.code != 0
    assert "this node requires a guard for shares, and no agent listens at" in result.text

    result = behind(bed, runc, agent, config).run(tenant(tree, "4", "1024", "0.1", nvc_guard="off"))
    assert "nvc.guard=off is not allowed on this node" in result.text


def test_without_an_agent_the_library_holds_the_share(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    look = Container(tree, ["cat", "/etc/ld.so.preload"], gpu_env("all"), annotations={"nvc.share": "mem=2Gi"})
    assert "libnvc-shim" not in behind(bed, runc, agent).run(look).out, "the guard needs no library"
    agent.stop()
    assert "libnvc-shim" in behind(bed, runc, agent).run(look).out


@pytest.mark.parametrize(
    ("kind", "remedy"), [("hmm", "uvm_disable_hmm=1"), ("ats", "NVreg_CoherentGPUMemoryMode=driver")]
)
def test_ordinary_memory_that_no_quota_counts_is_told_at_each_start(bed: Bed, kind: str, remedy: str) -> None:
    with served_machine(bed, f"pageable={kind}") as name, RunningAgent(bed, name) as agent:
        assert leftovers.until(lambda: bool(agent.of("warning")), seconds=30)
        (told,) = agent.of("warning")
        assert f"({kind.upper()})" in told["message"]
        assert remedy in told["hint"]
        agent.kill()
        agent.start()
        assert leftovers.until(lambda: len(agent.of("warning")) == 2, seconds=30)
