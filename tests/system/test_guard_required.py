"""A guard that only a profile claims, or that is missing: the container does not start."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nvc.guard.filter import merge
from tests.nvc.cdi.test_podman import CdiPodman
from tests.support import launchers, leftovers
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.required import (
    LOGS,
    NATIVE,
    NUL,
    ONCE,
    SHARE,
    agent,
    bed,
    behind,
    foreign,
    is_beyond,
    program,
    rules,
    seccomp,
    stranger,
    tree,
    with_hook,
)
from tests.support.runtimes import OciRuntime, find

__all__ = ["agent", "bed", "program", "stranger", "tree"]
pytestmark = pytest.mark.system

KINDS = [
    "no rules, own listener",
    "no rules, the agent's listener",
    "all rules, own listener",
    "a rule before them",
    "one rule less",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_that_claims_the_guard_starts_nothing(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, stranger: Path, kind: str
) -> None:
    """Attack (P3, H5): the profile's metadata was believed, so no library was put in, and nothing was announced."""
    profile = foreign(kind, f"{agent.directory}/listen", str(stranger))
    container = Container(tree, ONCE, gpu_env("all"), annotations={"nvc.share": SHARE})
    for guard in ("auto", "require"):
        result = behind(bed, runc, agent, guard).run(container, edit=seccomp(profile))
        assert not is_beyond(result), f"the whole GPU: {result.out}"
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert "it announces calls to a listener already" in result.text


@pytest.mark.parametrize("kind", ["no rules, own listener", "no rules, the agent's listener", "a rule before them"])
def test_nor_does_it_where_the_hook_alone_gives_the_share(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, stranger: Path, kind: str
) -> None:
    profile = foreign(kind, f"{agent.directory}/listen", str(stranger))
    config = rules(bed.directory("etc"), agent, "auto")
    bundle = bed.bundle(with_hook(bed, agent, tree, config))
    seccomp(profile)(bundle)
    result = runc.run(bundle, bed.name("c"))
    runc.clean()

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "seccomp profile: it claims nvc's guard, and it" in result.text


def test_a_tracer_cannot_let_calls_pass(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    """Attack: SCMP_ACT_TRACE was taken for a refusal, but a tracer in the container decides (seccomp(2))."""
    traced = {"names": ["ioctl", "mmap"], "action": "SCMP_ACT_TRACE", "errnoRet": 1}
    profile = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [NATIVE], "syscalls": [traced]}
    container = Container(tree, ["/bin/echo", "started"], gpu_env("all"), annotations={"nvc.share": SHARE})
    result = behind(bed, runc, agent, "require").run(container, edit=seccomp(profile))

    assert "started" not in result.out
    assert "action SCMP_ACT_TRACE for ioctl cannot be guarded" in result.text


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v2")])
@pytest.mark.parametrize("claims", [False, True])
def test_a_name_that_ends_in_c_starts_nothing(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, name: str, view: str, claims: bool
) -> None:
    """Attack: for libseccomp "ioctl\\0x" is ioctl, and a rule for the whole call swallows those of the guard."""
    profile = LOGS
    if claims:
        own = merge(None, f"{agent.directory}/listen", "nvc", NATIVE)
        profile = {**own, "syscalls": [{**NUL, "action": "SCMP_ACT_LOG"}, *own["syscalls"]]}
    container = Container(tree, ONCE, gpu_env("all"), annotations={"nvc.share": SHARE})
    result = behind(bed, ask(name, view), agent, "require").run(container, edit=seccomp(profile))

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "seccomp profile: " in result.text


@pytest.mark.parametrize("key", ["run.oci.seccomp_bpf_data", "run.oci.seccomp_bpf_data\0x"])
def test_a_filter_of_an_annotation_starts_nothing(
    bed: Bed, ask: Callable[[str, str], OciRuntime], agent: RunningAgent, tree: Path, key: str
) -> None:
    """Attack: crun installs the filter of the annotation (here: all is permitted) in place of the profile's."""
    allow = base64.b64encode(struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)).decode()
    container = Container(tree, ONCE, gpu_env("all"), annotations={"nvc.share": SHARE, key: allow})
    result = behind(bed, ask("crun", "v2"), agent, "require").run(container)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "run.oci.seccomp_bpf_data" in result.text


# A node that requires the guard (P1).


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
def test_a_hook_alone_starts_nothing_where_the_guard_is_required(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, stage: str
) -> None:
    """Attack (P1): only nvc-runtime looked; with the hook alone the library was all that held the container."""
    config = rules(bed.directory("etc"), agent, "require")
    result = bed.run(runc, with_hook(bed, agent, tree, config, stage))

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "this node requires a guard for shares, and this container has none" in result.text


def cdi(bed: Bed, agent: RunningAgent, tree: Path, config: Path, words: Sequence[str] = ()) -> Container:
    """A container as an engine makes it that applied a CDI specification itself: Kubernetes, Podman, Docker."""
    place = bed.commands.directory / "nvc-cdi-hook"
    arguments = ["nvc-cdi-hook", "noop", "then", "share", f"--sim={agent.machine}", f"--config={config}", *words]
    nodes = [path for path in Path(agent.machine, "dev").iterdir() if path.name.startswith("nvidia")]
    mounts = [
        {"destination": f"/dev/{path.name}", "source": str(path), "type": "bind", "options": ["bind", "rw"]}
        for path in nodes
        if path.is_file() or path.is_char_device()
    ]
    hook = Hook(str(place), arguments, bed.hook("prestart").env)
    env = ("NVIDIA_VISIBLE_DEVICES=void",)
    return Container(tree, ONCE, env, {"createContainer": [hook]}, mounts=mounts, annotations={"nvc.share": SHARE})


def test_a_cdi_hook_alone_starts_nothing_where_the_guard_is_required(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    config = rules(bed.directory("etc"), agent, "require")
    result = bed.run(runc, cdi(bed, agent, tree, config))

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "this node requires a guard for shares, and this container has none" in result.text


@pytest.mark.parametrize(("annotation", "words"), [(SHARE, ()), ("mem=100Gi", (f"--share={SHARE}",))])
def test_the_guard_comes_where_the_engine_applied_cdi_itself(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, annotation: str, words: Sequence[str]
) -> None:
    """Attack (P2): NVIDIA_VISIBLE_DEVICES=void was all that nvc-runtime looked at, and there was no guard."""
    config, before = rules(bed.directory("etc"), agent, "require"), len(agent.of("tenant"))
    container = replace(cdi(bed, agent, tree, config, words), annotations={"nvc.share": annotation})
    result = behind(bed, runc, agent).run(container)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert leftovers.until(lambda: len(agent.of("tenant")) == before + 1, seconds=30)


LIMIT = "apply-cuda-memory-limits"


def limited(bed: Bed, agent: RunningAgent, tree: Path, config: Path, share: Sequence[str] | None = None) -> Container:
    """As nvidia-ctk 1.20.1 makes it with a memory limit, one hook for each GPU. share: options of `share`, as well."""
    told = bed.call(bed.commands.nvc, f"--sim={agent.machine}", "info", "--json", check=True)
    own = f"--sim={agent.machine}", f"--config={config}"
    program, env = str(bed.commands.directory / "nvc-cdi-hook"), bed.hook("prestart").env
    uuids = [gpu["uuid"] for gpu in json.loads(told.out)["gpus"]]
    words = [["nvidia-cdi-hook", LIMIT, "--driver-root", "/", "--gpu-id", uuid, *own] for uuid in uuids]
    hooks = {"createRuntime": [Hook(program, one, env) for one in words]}
    container = cdi(bed, agent, tree, config, share or ())
    if share is not None:
        hooks.update(container.hooks)
    env = (*container.env, "NVIDIA_GPU_MEMORY_LIMIT=4096")
    return replace(container, env=env, hooks=hooks, annotations={})


def test_a_memory_limit_of_cdi_alone_starts_nothing_where_the_guard_is_required(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    result = bed.run(runc, limited(bed, agent, tree, rules(bed.directory("etc"), agent, "require")))

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "this node requires a guard for shares, and this container has none" in result.text


@pytest.mark.parametrize("guard", ["auto", "require"])
@pytest.mark.parametrize("share", [None, (), ("--share=mem=4Gi,cap=90%",)])
def test_the_guard_holds_a_memory_limit_of_cdi(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path, guard: str, share: Sequence[str] | None
) -> None:
    """nvc-runtime looked for the hook ``share`` only: a limit had the preloaded library, or none started."""
    config, before = rules(bed.directory("etc"), agent, guard), len(agent.of("tenant"))
    result = behind(bed, runc, agent, guard).run(limited(bed, agent, tree, config, share))

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert leftovers.until(lambda: len(agent.of("tenant")) == before + 1, seconds=30)


# The same through Podman, which passes a user's profile on and applies CDI specifications itself.


def edited(spec: Path, config: Path) -> None:
    """Name the node's rules to the hook, and give served nodes, which are files, as mounts."""
    content = yaml.safe_load(spec.read_text())
    for edits in (content["containerEdits"], *(one["containerEdits"] for one in content["devices"])):
        for node in edits.pop("deviceNodes", ()):
            mount = {
                "hostPath": node.get("hostPath", node["path"]),
                "containerPath": node["path"],
                "options": ["rw", "rbind"],
            }
            edits.setdefault("mounts", []).append(mount)
        for hook in edits.get("hooks", ()):
            if "share" in hook["args"]:
                hook["args"].insert(hook["args"].index("share") + 1, f"--config={config}")
    spec.write_text(json.dumps(content))


@pytest.fixture
def podman(bed: Bed, agent: RunningAgent, need: Callable[..., None]) -> Iterator[Callable[[str], CdiPodman]]:
    """Podman with nvc-runtime on a node that requires the guard, or with runc; and a specification with shares."""
    need("podman", "conmon", "runc")
    made: list[CdiPodman] = []

    def make(runtime: str) -> CdiPodman:
        one = CdiPodman(bed, "runc", "hybrid", "--share", machine=Path(agent.machine).name)
        made.append(one)
        config = rules(bed.directory("etc"), agent, "require")
        edited(one.specs / "nvidia.yaml", config)
        if runtime == "nvc-runtime":
            place = behind(bed, bed.runtime("runc", "hybrid"), agent, "require").directory
            words = (f"XDG_CONFIG_HOME={place}", f"NVC_SIM={agent.machine}", bed.commands.runtime)
            program = launchers.with_options(bed.directory("bin"), "nvc-runtime", "/usr/bin/env", *words)
            settings = one.podman.place / "containers.conf"
            settings.write_text(settings.read_text().replace(find("runc"), str(program)))
        return one

    yield make
    for one in made:
        one.podman.clean(one.name)


def test_podman_with_cdi_has_the_guard_behind_nvc_runtime_and_starts_nothing_without(
    podman: Callable[[str], CdiPodman], agent: RunningAgent, tree: Path
) -> None:
    asked, before = f"--annotation=nvc.share={SHARE}", len(agent.of("tenant"))
    alone = podman("runc").run(["nvidia.com/gpu=0"], ONCE, asked, rootfs=tree)
    assert not is_beyond(alone), f"the whole GPU: {alone.out}"
    assert alone.code != 0
    assert "this node requires a guard for shares" in alone.text

    result = podman("nvc-runtime").run(["nvidia.com/gpu=0"], ONCE, asked, rootfs=tree)
    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert leftovers.until(lambda: len(agent.of("tenant")) == before + 1, seconds=30)


@pytest.mark.parametrize("runtime", ["runc", "nvc-runtime"])
def test_podman_passes_a_users_profile_on_and_nothing_starts(
    bed: Bed, podman: Callable[[str], CdiPodman], agent: RunningAgent, tree: Path, stranger: Path, runtime: str
) -> None:
    profile = bed.directory("profile") / "seccomp.json"
    asked = (f"--annotation=nvc.share={SHARE}", f"--security-opt=seccomp={profile}")
    one = podman(runtime)
    for kind in ("no rules, own listener", "no rules, the agent's listener"):
        profile.write_text(json.dumps(foreign(kind, f"{agent.directory}/listen", str(stranger))))
        result = one.run(["nvidia.com/gpu=0"], ONCE, *asked, rootfs=tree)
        assert not is_beyond(result), f"the whole GPU: {result.out}"
        assert (result.code != 0, result.out) == (True, ""), result.text
        assert "seccomp profile: it" in result.text


def test_podmans_copy_of_the_guards_own_profile_is_good_behind_nvc_runtime(
    bed: Bed, podman: Callable[[str], CdiPodman], agent: RunningAgent, tree: Path
) -> None:
    profile = bed.directory("profile") / "seccomp.json"
    words = ("seccomp", "--listener", f"{agent.directory}/listen")
    profile.write_text(bed.call(bed.commands.nvc, *words, check=True).out)
    asked = (f"--annotation=nvc.share={SHARE}", f"--security-opt=seccomp={profile}")
    result = podman("nvc-runtime").run(["nvidia.com/gpu=0"], ONCE, *asked, rootfs=tree)
    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
