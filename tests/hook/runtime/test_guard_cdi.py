"""Which containers get the guard's filter where the engine itself applied a CDI specification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook.runtime import __main__ as main
from hook.runtime import shares
from hook.runtime.shares import ShareStep
from nvc.base.errors import InputError, PrivilegeError
from tests.hook.runtime.test_guard import ASKS, WHOLE, GuardBench, guard, machines

__all__ = ["guard", "machines"]
VOID = ("NVIDIA_VISIBLE_DEVICES=void",)
NODE = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}


def hook(*words: str, path: str = "/usr/bin/nvc-cdi-hook") -> dict[str, Any]:
    return {"createContainer": [{"path": path, "args": [path.rpartition("/")[2], *words]}]}


def test_the_spec_of_the_hook_bring_the_guard_without_another_request(guard: GuardBench) -> None:
    assert guard.is_guarded(WHOLE, VOID, hooks=hook("share", "--share=mem=1Gi"), linux=NODE)
    assert not guard.is_guarded(WHOLE, VOID, hooks=hook("share"), linux=NODE), "no request"
    assert not guard.is_guarded(WHOLE, VOID, hooks=hook("share", "--share=off"), linux=NODE)
    assert not guard.is_guarded(WHOLE, VOID, hooks=hook("noop"), linux=NODE, **ASKS), "no hook gives a share"
    assert not guard.is_guarded(WHOLE, VOID, hooks=hook("share", "--share=mem=1Gi")), "devices of others"


def test_a_hook_for_variables_does_not_hide_it(guard: GuardBench) -> None:
    """Attack: hooks.d has nvc-hook for every container, and NVIDIA_VISIBLE_DEVICES=void gives it nothing to do."""
    beside = {"prestart": [{"path": "/usr/bin/nvc-hook", "args": ["nvc-hook", "prestart"], "env": []}]}
    assert guard.is_guarded(WHOLE, VOID, hooks={**hook("share"), **beside}, linux=NODE, **ASKS)
    assert not guard.is_guarded(WHOLE, VOID, hooks=beside, linux=NODE, **ASKS)


def test_the_rules_are_those_of_the_hooks_own_file(guard: GuardBench) -> None:
    guard.configure('guard = "off"')
    other = guard.bench.path / "other.toml"
    other.write_text(f'[agent]\ndirectory = "{guard.directory}"\n[share]\nguard = "require"\n')
    assert guard.is_guarded(WHOLE, VOID, hooks=hook("share", f"--config={other}"), linux=NODE, **ASKS)
    guard.close()
    with pytest.raises(PrivilegeError, match="this node requires a guard"):
        guard.create(WHOLE, VOID, hooks=hook("share", f"--config={other}"), linux=NODE, **ASKS)


@pytest.mark.parametrize(
    "linux",
    [
        {"linux": {"devices": [{"path": "/dev/./nvidia0", "type": "c", "major": 195, "minor": 0}]}},
        {"linux": {"devices": [{"path": "/dev/nvidia7", "type": "c", "major": 195, "minor": 0}]}},
        {"mounts": [{"destination": "/dev/", "type": "bind", "source": "/dev"}]},
    ],
    ids=["another spelling", "another name", "the host's /dev"],
)
def test_the_nodes_are_those_that_the_hook_will_see(guard: GuardBench, linux: dict[str, Any]) -> None:
    guard.configure('default = "mem=50%"')
    assert guard.is_guarded(WHOLE, VOID, hooks=hook("share"), **linux)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (hook("share"), ShareStep()),
        (hook("share", "--share", "cap=5%", "--sim=/m", "--root", "/r"), ShareStep("cap=5%", "", "/m", "/r")),
        (hook("share", "--config", "/c"), ShareStep(config="/c")),
        (hook("create-symlinks", "--link", "a::b", "then", "share", "--share=cap=5%"), ShareStep("cap=5%")),
        (hook("share", "--share=cap=5%", "then", "chmod", "--mode=755"), ShareStep("cap=5%")),
        (hook("share", "--debug", "--share=x", "--share=cap=5%"), ShareStep("cap=5%")),
        (hook("cdi-hook", "share", path="/usr/bin/nvc-py"), ShareStep()),
        (hook("cdi-hook", "noop", "then", "share", path="/usr/bin/nvc-py"), ShareStep()),
        ({"createContainer": [{"path": "/opt/nvc-cdi-hook", "args": ["renamed", "share"]}]}, ShareStep()),
        ({"createContainer": [{"path": "/opt/other", "args": ["x"]}, *hook("share")["createContainer"]]}, ShareStep()),
        (hook("create-symlinks", "--link", "share::share"), None),
        (hook("chmod", "--path", "share"), None),
        (hook("share", path="/usr/bin/nvc-py"), None),
        (hook("share", path="/usr/bin/other"), ShareStep()),
        (hook("--debug=/f", "cdi-hook", "share", path="/usr/bin/nvc-py"), ShareStep()),
        (hook("--debug", "/f", "cdi-hook", "share", "--share=cap=5%", path="/usr/bin/nvc-py"), ShareStep("cap=5%")),
        (hook("nvc-cdi-hook", "share", "--root=/r", path="/usr/bin/env"), ShareStep(root="/r")),
        (hook("-i", "A=share", "/usr/bin/nvc-cdi-hook", "noop", "then", "share", path="/bin/env"), ShareStep()),
        (hook("nvc-py", "--debug=/f", "cdi-hook", "share", path="/usr/bin/env"), ShareStep()),
        (hook("-c", "exec nvc-cdi-hook share --config=/c", path="/bin/sh"), ShareStep(config="/c")),
        (hook("share", path="/usr/bin/nvidia-cdi-hook"), ShareStep()),
        ({"createContainer": [{"path": "/x", "args": ["nvc-cdi-hook", "nvc-cdi-hook", "share"]}]}, ShareStep()),
        (hook("nvc-cdi-hook", "create-symlinks", "--link", "share", path="/usr/bin/env"), None),
        (hook("nvc-py", "share", path="/usr/bin/env"), None),
        (hook("--link=/usr/share::share", path="/usr/bin/other"), None),
        ({"createContainer": [{"path": "/usr/bin/nvc-cdi-hook"}, None, {"path": 1, "args": [2, "share"]}]}, None),
        ({"prestart": hook("share")["createContainer"]}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_hook_is_found_by_its_name_and_read_as_it_reads_itself(
    entry: dict[str, Any], found: ShareStep | None
) -> None:
    content = {"hooks": entry}
    assert shares.step(content, {}, "/b") == found
    assert content == {"hooks": entry}, "looking changes nothing"


LIMITED = [("--driver-root=/d", "--gpu-id=GPU-1"), ("--driver-root", "/d", "--gpu-id", "GPU-2", "--sim=/m")]


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
@pytest.mark.parametrize("limit", ["", "4096", "none"])
def test_a_memory_limit_of_cdi_is_a_share(stage: str, limit: str) -> None:
    entries = [hook("apply-cuda-memory-limits", *words)["createContainer"][0] for words in LIMITED]
    env = {"NVIDIA_GPU_MEMORY_LIMIT": limit} if limit else {}
    content = {"hooks": {stage: entries}}
    if limit == "none":
        with pytest.raises(InputError, match="NVIDIA_GPU_MEMORY_LIMIT='none' is not a number of MiB"):
            shares.step(content, env, "/b")
        return
    assert shares.step(content, env, "/b") == (ShareStep("mem=4096Mi", root="/d") if limit else None)
    with_share = {"hooks": {stage: entries, **hook("share", "--root=/r")}}
    assert shares.step(with_share, env, "/b") == ShareStep("mem=4096Mi" if limit else "", root="/r")
    told = {"hooks": {stage: entries, **hook("share", "--share=cap=5%")}}
    assert shares.step(told, env, "/b") == ShareStep("cap=5%")


def links(path: Path, name: str, *targets: str) -> str:
    """A program called ``name`` that is a link to a link to the last of ``targets``."""
    (path / targets[-1]).touch(0o755)
    for link, text in zip((name, *targets), targets, strict=False):
        (path / link).symlink_to(text)
    return str(path / name)


MEMORY = {"NVIDIA_GPU_MEMORY_LIMIT": "4096"}
SPELLINGS = [
    ["nvc-cdi-hook", "HOOK"],
    ["nvidia-cdi-hook", "HOOK"],
    ["/usr/bin/env", "nvc-cdi-hook", "HOOK"],
    ["/usr/bin/env", "-i", "PATH=PLACE", "nvidia-cdi-hook", "HOOK"],
    ["/usr/bin/env", "PLACE/nvidia-cdi-hook", "HOOK"],
    ["nvc-py", "--debug=/f", "cdi-hook", "HOOK"],
    ["/bin/sh", "-c", "exec PLACE/nvidia-cdi-hook HOOK"],
    ["/opt/wrapper", "HOOK"],
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=" ".join)
@pytest.mark.parametrize("name", ["share", "apply-cuda-memory-limits"])
@pytest.mark.parametrize("stage", ["createContainer", "createRuntime", "prestart"])
def test_a_step_is_found_however_its_program_is_spelt(
    guard: GuardBench, tmp_path: Path, spelling: list[str], name: str, stage: str
) -> None:
    """Attack: with guard = "auto" nvc-runtime did not take these for steps, so they gave a share without the guard."""
    place = tmp_path / "links"
    place.mkdir()
    links(place, "nvidia-cdi-hook", "current", "nvc-cdi-hook")
    words = [word.replace("PLACE", str(place)).replace("HOOK", name) for word in spelling]
    path = words[0] if words[0].startswith("/") else str(place / words[0])
    hooks = {stage: [{"path": path, "args": words}]}
    env = (*VOID, "NVIDIA_GPU_MEMORY_LIMIT=4096")
    content = {"hooks": hooks}
    assert main._may_share(content)
    at_its_stage = (name == "share") is (stage == "createContainer")
    assert guard.is_guarded(WHOLE, env, hooks=hooks, linux=NODE) is at_its_stage
    assert not guard.is_guarded(WHOLE, env, hooks=hooks), "devices of others"


def test_nvidias_own_program_limits_memory_itself(tmp_path: Path) -> None:
    name = "apply-cuda-memory-limits"
    path = links(tmp_path, "nvidia-cdi-hook", "nvidia-cdi-hook.real")
    for words in ([path, name], ["/usr/bin/env", path, name], ["/bin/sh", "-c", f"exec {path} {name} --gpu-id=G"]):
        content = {"hooks": {"createRuntime": [{"path": words[0], "args": words}]}}
        assert shares.step(content, MEMORY, "/b") is None


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_devices_that_a_hook_is_told_count(guard: GuardBench, tmp_path: Path, stage: str, wrapped: bool) -> None:
    """Attack: NVC_DEVICES of the hook's entry gave a GPU, and the container's variable said void."""
    entry: dict[str, Any] = {"path": links(tmp_path, "gpus", "nvc-hook"), "args": ["gpus", stage]}
    entry["env"] = ["NVC_DEVICES=0"]
    if wrapped:
        entry = {"path": "/usr/bin/env", "args": ["env", "NVC_DEVICES=0", "/usr/bin/nvc-hook", stage], "env": []}
    hooks = {stage: [entry]}
    assert main._may_share({"hooks": hooks})
    # At createContainer the hook keeps nothing of its environment.
    assert guard.is_guarded(WHOLE, VOID, hooks=hooks, **ASKS) is (stage != "createContainer")
    assert not guard.is_guarded(WHOLE, VOID, hooks={"poststop": [entry]}, **ASKS)


@pytest.mark.parametrize("words", [("--config={}",), ("--config", "{}"), ("-config={}",)])
def test_the_rules_of_an_injecting_hook_are_those_of_its_own_file(guard: GuardBench, words: tuple[str, ...]) -> None:
    """Attack: its file gave the default share, the node's own had none, and there was no guard."""
    other = guard.bench.path / "other/nvc/config.toml"
    other.parent.mkdir(parents=True)
    other.write_text(f'[agent]\ndirectory = "{guard.directory}"\n[share]\ndefault = "mem=50%"\n')
    options = [word.format(other) for word in words]
    entry = {"path": "/usr/bin/nvc-hook", "args": ["nvc-hook", *options, "prestart"], "env": []}
    assert guard.is_guarded(hooks={"prestart": [entry]})
    named = {**entry, "args": ["nvc-hook", "prestart"], "env": [f"XDG_CONFIG_HOME={other.parent.parent}"]}
    assert guard.is_guarded(hooks={"prestart": [named]})
    other.write_text("[share]\n")
    assert not guard.is_guarded(hooks={"prestart": [entry]})


@pytest.mark.parametrize("destination", ["//dev/nvidia0", "dev/nvidia0", "/xdev/nvidia0", "/data/x"])
def test_a_mounted_node_is_known_wherever_it_is_mounted(guard: GuardBench, destination: str) -> None:
    """Attack: spellings of the destination that the share step sees and nvc-runtime did not."""
    guard.configure('default = "mem=50%"')
    source = str(guard.machines / WHOLE / "dev/nvidia0")
    mount = {"destination": destination, "source": source, "type": "bind", "options": ["bind"]}
    assert guard.is_guarded(WHOLE, VOID, hooks=hook("share"), mounts=[mount])


def test_a_memory_limit_of_another_program_is_not_ours() -> None:
    entries = hook("apply-cuda-memory-limits", "--gpu-id=GPU-1", path="/usr/bin/nvidia-cdi-hook")["createContainer"]
    entries[0]["args"][0] = "nvidia-cdi-hook"
    assert shares.step({"hooks": {"createRuntime": entries}}, {"NVIDIA_GPU_MEMORY_LIMIT": "1"}, "/b") is None
