"""Hook entries that spell their program in other ways: what gives a share has the guard, as with the usual entry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.bundle import Container, Hook
from tests.support.required import ONCE, SHARE, agent, bed, behind, is_beyond, program, rules, tree
from tests.support.runtimes import OciRuntime
from tests.system.test_guard_required import cdi, limited

__all__ = ["agent", "bed", "program", "tree"]
pytestmark = pytest.mark.system

#: Before the name of the hook.
SPELLINGS = [
    ("LINKS/nvidia-cdi-hook",),
    ("/usr/bin/env", "BIN/nvc-cdi-hook"),
    ("/usr/bin/env", "PATH=LINKS:/usr/bin:/bin", "nvidia-cdi-hook"),
    ("/bin/sh", "LINKS/wrapper"),
    ("BIN/nvc-py", "--debug=LINKS/debug", "cdi-hook"),
]


def spelt(bed: Bed, container: Container, stage: str, spelling: Sequence[str]) -> Container:
    """With the stage's hooks started in another way."""
    links, bin = bed.directory("links"), bed.commands.directory
    (links / "nvidia-cdi-hook").symlink_to(bin / "nvc-cdi-hook")
    (links / "wrapper").write_text(f'exec {bin}/nvc-cdi-hook "$@"\n')
    start = [word.replace("LINKS", str(links)).replace("BIN", str(bin)) for word in spelling]

    def edit(hook: Hook) -> Hook:
        words = [word for word in hook.args[1:] if word not in ("noop", "then")]
        return replace(hook, path=start[0], args=[os.path.basename(start[0]), *start[1:], *words])

    hooks = {name: [edit(one) if name == stage else one for one in found] for name, found in container.hooks.items()}
    return replace(container, hooks=hooks)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=" ".join)
@pytest.mark.parametrize("limit", [False, True])
def test_a_share_has_the_guard_however_its_hook_is_spelt(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, spelling: Sequence[str], limit: bool
) -> None:
    """Attack: with guard = "auto" these gave a share that the preloaded library alone held."""
    config, before = rules(bed.directory("etc"), agent, "auto"), len(agent.of("tenant"))
    made = limited(bed, agent, tree, config) if limit else cdi(bed, agent, tree, config)
    container = spelt(bed, made, "createRuntime" if limit else "createContainer", spelling)
    result = behind(bed, runc, agent).run(container)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert leftovers.until(lambda: len(agent.of("tenant")) == before + 1, seconds=30)


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_devices_of_the_hooks_own_variable_have_the_guard(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, stage: str
) -> None:
    """Attack: NVC_DEVICES gave the GPU, and NVIDIA_VISIBLE_DEVICES=void was all that nvc-runtime looked at."""
    config, before = rules(bed.directory("etc"), agent, "auto"), len(agent.of("tenant"))
    hook = bed.hook(stage, f"--config={config}", machine=Path(agent.machine).name)
    hook = replace(hook, env=[*hook.env, "NVC_DEVICES=0"])
    env = ("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    container = Container(tree, ONCE, env, {stage: [hook]}, annotations={"nvc.share": SHARE})
    result = behind(bed, runc, agent).run(container)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert leftovers.until(lambda: len(agent.of("tenant")) == before + 1, seconds=30)


def test_a_default_of_the_hooks_own_file_has_the_guard(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    """Attack: the default was in the file of the hook's --config, and the node's own had none."""
    config, before = rules(bed.directory("etc"), agent, "auto"), len(agent.of("tenant"))
    config.write_text(f'{config.read_text()}default = "{SHARE}"\n')
    hook = bed.hook("prestart", f"--config={config}", machine=Path(agent.machine).name)
    container = Container(tree, ONCE, ("NVIDIA_VISIBLE_DEVICES=all",), {"prestart": [hook]})
    result = behind(bed, runc, agent).run(container)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert leftovers.until(lambda: len(agent.of("tenant")) == before + 1, seconds=30)
