"""A tenant's volume over a node of its GPU, or over /dev, takes the GPU neither from it nor out of its share.

config.json is as an engine's CDI makes it: node, device rule, hook ``nvc-cdi-hook share``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvc.share.limits import decode
from tests.support import leftovers
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.bundle import Container, Hook
from tests.support.required import SHARE, agent, bed, behind, program, rules, tree
from tests.support.runtimes import OciRuntime, Result
from tests.support.wrapped import Wrapped

__all__ = ["agent", "bed", "program", "tree"]
pytestmark = pytest.mark.system

#: Where the covered node is; None: all of /dev is.
PLACES = ["/dev/nvidia{}", "//dev/nvidia{}", "dev/nvidia{}", "/xdev/nvidia{}", None]
#: Names of the node of GPU 0 that are not the usual one.
NAMES = ["/dev/gpu0", "/dev/x/nvidia0", "/dev/nvidia000000"]
SHOW = "test ! -e /run/nvc-share/limits || echo limits $(od -v -An -tx1 /run/nvc-share/limits | tr -d ' ')"
START = ("/bin/sh", "-c", f"mknod /dev/mine c 195 0; {SHOW} | tr -d '\\n'; echo; echo started")
MANY = "h100x8"


def container(bed: Bed, tree: Path, sim: str | Path, *words: str) -> Container:
    """With a share of its own; its GPUs are in ``given``."""
    (tree / "xdev").symlink_to("dev")
    place = bed.commands.directory / "nvc-cdi-hook"
    hook = Hook(str(place), ["nvc-cdi-hook", "share", f"--sim={sim}", *words], bed.hook("prestart").env)
    env = ("NVIDIA_VISIBLE_DEVICES=void",)
    return Container(tree, START, env, {"createContainer": [hook]}, annotations={"nvc.share": SHARE})


def given(nodes: dict[int, str], *mounts: dict[str, Any], rules_alone: bool = False) -> Callable[[Path], None]:
    """What the engine adds for GPUs, node by node, and what the tenant adds."""

    def edit(bundle: Path) -> None:
        config = json.loads((bundle / "config.json").read_text())
        linux = config["linux"]
        numbers = [{"type": "c", "major": 195, "minor": minor} for minor in nodes]
        linux["resources"]["devices"] += [{**one, "allow": True, "access": "rwm"} for one in numbers]
        if not rules_alone:
            linux["devices"] = [
                {**one, "path": path, "fileMode": 0o666, "uid": 0, "gid": 0}
                for one, path in zip(numbers, nodes.values(), strict=True)
            ]
        config["mounts"] += mounts
        (bundle / "config.json").write_text(json.dumps(config))

    return edit


def volume(bed: Bed, place: str | None, minor: int = 0) -> dict[str, Any]:
    source = bed.directory("volume")
    for name in () if place else ("null", "zero", "pts", "shm", "mqueue", "nvidia5"):
        (source / name).mkdir() if name in ("pts", "shm", "mqueue") else (source / name).touch()
    destination = place.format(minor) if place else "/dev"
    return {"destination": destination, "source": str(source), "type": "bind", "options": ["bind", "rw"]}


def plain(bed: Bed, runtime: OciRuntime, container: Container, edit: Callable[[Path], None]) -> Result:
    bundle = bed.bundle(container)
    edit(bundle)
    try:
        return runtime.run(bundle, bed.name("c"))
    finally:
        runtime.clean()


def shared(result: Result) -> list[str]:
    """The GPUs of the share, as the container saw it: others may take the record of one that has ended."""
    assert result.code == 0, result.text
    shown = [line for line in result.out.splitlines() if line.startswith("limits ")]
    return [gpu.uuid for line in shown for gpu in decode(bytes.fromhex(line.removeprefix("limits "))).gpus]


def uuids(bed: Bed, numbers: Sequence[int]) -> list[str]:
    told = bed.call(bed.commands.nvc, f"--sim={bed.machine(MANY)}", "info", "--json", check=True)
    return [gpu["uuid"] for gpu in json.loads(told.out)["gpus"] if gpu["minor"] in numbers]


# One GPU, on a node that requires the guard.


@pytest.mark.parametrize("place", PLACES)
def test_a_covered_gpu_starts_nothing_without_the_guard(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, place: str | None
) -> None:
    """Attack: no node was seen in /dev, so there was no share, no guard, and the container had the GPU."""
    config = rules(bed.directory("etc"), agent, "require")
    one = container(bed, tree, agent.machine, f"--config={config}")
    result = plain(bed, runc, one, given({0: "/dev/nvidia0"}, volume(bed, place)))

    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "this node requires a guard for shares, and this container has none" in result.text


def test_nor_does_it_with_crun(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path
) -> None:
    config = rules(bed.directory("etc"), agent, "require")
    told = bed.directory("told") / "hook"  # crun shows nothing of what a hook says
    words = (f"--config={config}", f"--debug={told}")
    one, crun = container(bed, tree, agent.machine, *words), ask("crun", "v2")
    for edit in (given({0: "/dev/nvidia0"}, volume(bed, "/dev/nvidia{}")), given({0: "/dev/gpu0"})):
        result = plain(bed, crun, one, edit)
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert "this node requires a guard for shares, and this container has none" in told.read_text()
        told.unlink()


@pytest.mark.parametrize("name", NAMES)
def test_nor_does_one_with_another_name(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, name: str) -> None:
    config = rules(bed.directory("etc"), agent, "require")
    one = container(bed, tree, agent.machine, f"--config={config}")
    for alone in (False, True):
        result = plain(bed, runc, one, given({0: name}, rules_alone=alone))
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert "this node requires a guard for shares, and this container has none" in result.text


@pytest.mark.parametrize("guard", ["auto", "require"])
@pytest.mark.parametrize("place", PLACES)
def test_a_covered_gpu_has_the_guard_behind_nvc_runtime(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, place: str | None, guard: str
) -> None:
    config, before = rules(bed.directory("etc"), agent, guard), len(agent.of("tenant"))
    # Its program calls no driver: it must not end before the agent has taken its listener.
    one = replace(container(bed, tree, agent.machine, f"--config={config}"), args=(*START[:2], f"{START[2]}; sleep 1"))
    edit = given({0: "/dev/nvidia0"}, volume(bed, place))
    result = behind(bed, runc, agent, guard).run(one, edit=edit)

    assert result.code == 0, result.text
    assert result.out.endswith("started\n")
    assert leftovers.until(lambda: len(agent.of("tenant")) == before + 1, seconds=30)


# Of more GPUs, on a node without an agent: which are in the share.


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("place", PLACES[:-1])
def test_a_covered_gpu_is_in_the_share(bed: Bed, runc: OciRuntime, tree: Path, place: str, wrapped: bool) -> None:
    edit = given({0: "/dev/nvidia0", 1: "/dev/nvidia1"}, volume(bed, place))
    one = container(bed, tree, bed.machine(MANY))
    result = Wrapped(bed, runc, "", MANY).run(one, edit=edit) if wrapped else plain(bed, runc, one, edit)
    assert shared(result) == uuids(bed, (0, 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_with_another_name_is_in_the_share(bed: Bed, runc: OciRuntime, tree: Path, name: str) -> None:
    one = container(bed, tree, bed.machine(MANY))
    result = Wrapped(bed, runc, "", MANY).run(one, edit=given({0: name, 1: "/dev/nvidia1"}))
    assert shared(result) == uuids(bed, (0, 1))


def test_a_rule_for_all_is_a_share_of_all(bed: Bed, runc: OciRuntime, tree: Path) -> None:
    one = container(bed, tree, bed.machine(MANY))
    result = plain(bed, runc, one, given({-1: "/dev/all"}, rules_alone=True))
    assert shared(result) == uuids(bed, range(8))


def test_a_gpu_that_is_not_known_is_refused(bed: Bed, runc: OciRuntime, tree: Path) -> None:
    one = container(bed, tree, bed.machine(MANY))
    edit = given({0: "/dev/nvidia0", 9: "/dev/nvidia9"})
    for result in (plain(bed, runc, one, edit), Wrapped(bed, runc, "", MANY).run(one, edit=edit)):
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert "config.json gives the container GPU 195:9, and no GPU here has that number" in result.text


def test_devices_of_others_are_no_share(bed: Bed, runc: OciRuntime, tree: Path) -> None:
    one = container(bed, tree, bed.machine(MANY))
    result = plain(bed, runc, one, given({}, volume(bed, "/data")))
    assert shared(result) == []
