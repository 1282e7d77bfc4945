"""Registrations with the agent: what they are good for, and what of a share no container can write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvc.guard.filter import merge
from tests.support import leftovers
from tests.support.agentbed import Held, RunningAgent
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.required import (
    NATIVE,
    ONCE,
    SHARE,
    agent,
    bed,
    behind,
    of,
    program,
    rules,
    seccomp,
    tree,
    with_hook,
)
from tests.support.runtimes import OciRuntime

__all__ = ["agent", "bed", "program", "tree"]
pytestmark = pytest.mark.system


def test_the_true_profile_is_not_enough_without_a_registration(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    """A running container's id, and its whole config.json, do not make another container a guarded one."""
    config = rules(bed.directory("etc"), agent, "auto")
    profile = merge(None, f"{agent.directory}/listen", "nvc", NATIVE)
    with Held(behind(bed, runc, agent), replace(with_hook(bed, agent, tree, config), args=(*ONCE[:3], "0"))) as held:
        assert held.line() == "held"
        other = replace(runc, state=bed.directory("state"), started=[])
        for name, why in ((bed.name("c"), ""), (held.name, ", but from another bundle or for another process")):
            bundle = bed.bundle(with_hook(bed, agent, tree, config))
            seccomp(profile)(bundle)
            result = other.run(bundle, name)
            assert (result.code != 0, result.out) == (True, ""), result.text
            assert f"container {name} is not registered with the agent{why}" in result.text
        other.clean()
        assert held.end()[0] == 0, "the one that is registered goes on"


def test_a_listener_without_a_registration_is_ended(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    profile = merge(None, f"{agent.directory}/listen", "nvc", NATIVE)
    bundle = bed.bundle(Container(tree, ["/bin/sh", "-c", "sleep 20"], ()))
    seccomp(profile)(bundle)
    name = bed.name("c")
    result = runc.run(bundle, name)
    runc.clean()

    assert result.code != 0
    assert leftovers.until(lambda: bool(of(agent, "refused", name)), seconds=30)
    (refused,) = of(agent, "refused", name)
    assert (refused["ended"], "is not registered" in refused["message"]) == (True, True), refused


# The agent that is asked.


def test_a_registration_outlives_the_agent_that_took_it(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    """It is killed after nvc-runtime registered the container, and before the container arrives."""
    place = bed.directory("between")
    # Prestart hooks run in their order: the share step is ours, after this one.
    wait = f"touch {place}/there; while [ ! -e {place}/go ]; do sleep 0.02; done"
    container = Container(
        tree, (*ONCE[:3], "0"), gpu_env("all"), {"prestart": [bed.shell_hook(wait)]}, annotations={"nvc.share": SHARE}
    )
    with Held(behind(bed, runc, agent, "require"), container) as held:
        assert leftovers.until(lambda: (place / "there").exists(), seconds=30)
        agent.kill()
        agent.start()
        (place / "go").touch()
        assert held.line() == "held"
        assert agent.tenant(held.name) is not None
        code, said = held.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said


def test_a_container_that_did_not_arrive_leaves_no_registration(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    hooks = {"prestart": [bed.shell_hook("exit 3")]}
    container = Container(tree, ONCE, gpu_env("all"), hooks, annotations={"nvc.share": SHARE})
    wrapped, config = behind(bed, runc, agent), rules(bed.directory("etc"), agent, "auto")
    bundle, name = bed.bundle(container), bed.name("c")
    failed = bed.call(*wrapped.command(bed.commands.runtime, "run", "--bundle", str(bundle), name))
    assert failed.code != 0
    assert len(of(agent, "register", name)) == 1
    # The same id and bundle, with the filter that is in config.json now, without nvc-runtime.
    data = json.loads((bundle / "config.json").read_text())
    data["hooks"] = {
        "prestart": [bed.hook("prestart", f"--config={config}", machine=Path(agent.machine).name).as_data()]
    }
    (bundle / "config.json").write_text(json.dumps(data))
    result = runc.run(bundle, name)
    runc.clean()

    assert (result.code != 0, result.out) == (True, ""), result.text
    assert f"container {name} is not registered with the agent" in result.text


# The host's limits file (P14).

#: Remounts every file of its share writable and fills it with zeros, by mount(2) alone.
REMOUNT = """
for file in $(awk '$5 ~ "nvc-share|ld.so.preload" {print $5}' /proc/self/mountinfo); do
    mount -o remount,bind,rw $file && head -c 8192 /dev/zero 1<>$file && echo wrote $file
done
exec "$@"
"""


def limit(agent: RunningAgent, container: str) -> int:
    """The quota that the agent holds it to; bytes."""
    found = agent.tenant(container)
    return found.gpus[0].limit if found is not None else 0


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "library"])
def test_a_container_cannot_write_what_the_host_believes(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, guarded: bool
) -> None:
    """Attack (P14): the read-only mount of the host's limits file was made writable and written."""
    command = ["/bin/sh", "-c", REMOUNT, "sh", "sh", "-c", "echo done; read line"]
    container = Container(
        tree, command, gpu_env("all"), annotations={"nvc.share": SHARE}, capabilities=("CAP_SYS_ADMIN",)
    )
    with Held(behind(bed, runc, agent, "auto" if guarded else "off"), container) as held:
        wrote = []
        while (line := held.line()) != "done":
            wrote.append(line)
        host = bed.call(bed.commands.nvc, "share", "get", held.name)
        assert (host.code, f"{SHARE}" in host.out) == (0, True), (wrote, host.text)
        assert bed.call(bed.commands.nvc, "share", "set", held.name, "mem=3Gi").code == 0
        assert "mem=3Gi" in bed.call(bed.commands.nvc, "share", "get", held.name, check=True).out
        if guarded:
            assert wrote == [], "a container under the guard has no file of the host's"
            assert leftovers.until(lambda: limit(agent, held.name) == 3 << 30, seconds=30)
            assert of(agent, "warning", held.name) == []
        else:
            assert "wrote /run/nvc-share/limits" in wrote, "the attack does what it says"
        held.end()
