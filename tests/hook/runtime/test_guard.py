"""Which containers get the guard's filter from nvc-runtime, and what is said of those that do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hook import bundle, environment
from hook.config import HookConfig
from hook.runtime import __main__ as main
from hook.runtime import guard as under_test
from hook.runtime import shares
from hook.runtime.journal import Journal
from hook.runtime.modify import modify
from hook.runtime.shares import ShareStep
from nvc.base.errors import AgentError, InputError, PrivilegeError
from nvc.guard import registered
from nvc.request import injection
from nvc.share import policyfile
from nvc.sim import create
from tests.hook.runtime.conftest import Bench
from tests.support.fake_agent import FakeAgent

GPU = ("NVIDIA_VISIBLE_DEVICES=0",)
ASKS = {"annotations": {"nvc.share": "mem=4Gi"}}
WHOLE, MIG = "h200", "a100-mig-dev"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machines")
    for name in (WHOLE, MIG):
        create.create(str(directory / name), name)
    return directory


class GuardBench:
    """What nvc-runtime does to config.json, with a node's configuration and an agent's socket of its own."""

    def __init__(self, bench: Bench, machines: Path, patch: pytest.MonkeyPatch) -> None:
        self.bench, self.machines, self.patch = bench, machines, patch
        self.directory = bench.path / "agent"
        self.directory.mkdir()
        self.config = bench.path / "etc/nvc/config.toml"
        patch.setenv("XDG_CONFIG_HOME", str(bench.path / "etc"))
        patch.setattr(policyfile, "CONFIG", str(self.config))
        patch.setattr(injection, "NODE_CONFIG", str(self.config))
        self.agent: FakeAgent | None = None

    def listen(self) -> None:
        self.agent = FakeAgent(str(self.directory / "control"), register=lambda request: [{"ok": True}])

    @property
    def registered(self) -> list[dict[str, Any]]:
        """What the agent was told of containers."""
        return self.agent.asked if self.agent is not None else []

    def close(self) -> None:
        if self.agent is not None:
            self.agent.close()

    def configure(self, share: str = "") -> None:
        self.bench.configure(more=f'[agent]\ndirectory = "{self.directory}"\n[share]\n{share}')

    def create(self, machine: str = WHOLE, env: tuple[str, ...] = GPU, **changes: Any) -> dict[str, Any] | None:
        """Make a container; its seccomp profile. Raises NvcError."""
        self.patch.setenv("NVC_SIM", str(self.machines / machine))
        self.bench.write(env, **changes)
        content, directory = self.bench.content, str(self.bench.bundle)
        found = bundle.look(content, directory)
        variables = environment.parse(found.env)
        modify(content, found, variables, HookConfig(), str(self.bench.bin / "nvc-runtime"), directory, Journal())
        added = under_test.add(content, found, variables, HookConfig(), "c1", Journal())
        profile: dict[str, Any] | None = (content.get("linux") or {}).get("seccomp")
        assert not added or profile is not None
        return profile

    def is_guarded(self, *arguments: Any, **changes: Any) -> bool:
        profile = self.create(*arguments, **changes)
        assert profile is None or profile["listenerPath"] == str(self.directory / "listen")
        return profile is not None


@pytest.fixture
def guard(bench: Bench, machines: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardBench]:
    made = GuardBench(bench, machines, monkeypatch)
    made.configure()
    made.listen()
    yield made
    made.close()


def test_a_container_that_asks_for_a_share_gets_the_filter_once(guard: GuardBench) -> None:
    profile = guard.create(**ASKS)
    assert profile is not None
    assert profile["listenerMetadata"].partition(":")[0] == "nvc"
    assert any(rule["action"] == "SCMP_ACT_NOTIFY" for rule in profile["syscalls"])

    again = guard.create(**ASKS, linux={"seccomp": profile})
    assert again == profile
    at = guard.bench.bundle.stat()
    told = {"verb": "register", "container": "c1", "device": at.st_dev, "inode": at.st_ino}
    assert guard.registered == [{**told, "bundle": str(guard.bench.bundle)}] * 2


def test_a_container_without_a_share_or_a_gpu_gets_no_filter(guard: GuardBench) -> None:
    assert not guard.is_guarded()
    assert not guard.is_guarded(WHOLE, ("NVIDIA_VISIBLE_DEVICES=none",), **ASKS)
    assert not guard.is_guarded(WHOLE, (), **ASKS)
    assert not guard.is_guarded(annotations={"nvc.share": "off"})


def test_a_hook_in_hooks_d_that_will_give_nothing_brings_no_filter(guard: GuardBench) -> None:
    hooks = {"prestart": [{"path": "/usr/bin/nvc-hook", "args": ["nvc-hook", "prestart"], "env": ["NVC_DEVICES=none"]}]}
    assert not guard.is_guarded(WHOLE, GPU, hooks=hooks, **ASKS)


def test_the_nodes_default_guards_whole_gpus_and_leaves_mig_devices_alone(guard: GuardBench) -> None:
    guard.configure('default = "mem=50%"')
    assert guard.is_guarded()
    assert not guard.is_guarded(MIG, ("NVIDIA_VISIBLE_DEVICES=0:0",))
    assert not guard.is_guarded(MIG, ("NVIDIA_VISIBLE_DEVICES=0",))
    assert guard.is_guarded(MIG, ("NVIDIA_VISIBLE_DEVICES=all",))  # two of its GPUs are whole


@pytest.mark.parametrize("rule", ["default", "maximum"])
def test_a_mig_device_keeps_no_whole_gpu_from_the_guard(guard: GuardBench, rule: str) -> None:
    """Attack: a MIG device beside a whole GPU, and the container started without an agent."""
    guard.configure(f'{rule} = "mem=4Gi"')
    asked = ("NVIDIA_VISIBLE_DEVICES=2,0:0",)
    assert guard.is_guarded(MIG, asked)
    guard.close()
    guard.configure(f'{rule} = "mem=4Gi"\nguard = "require"')
    with pytest.raises(PrivilegeError, match="this node requires a guard for shares"):
        guard.create(MIG, asked)


def test_the_nodes_default_looks_at_the_nodes_that_a_cdi_specification_gives(guard: GuardBench) -> None:
    guard.configure('default = "mem=50%"')
    hooks = {"createContainer": [{"path": "/usr/bin/nvc-cdi-hook", "args": ["nvc-cdi-hook", "share"]}]}
    devices = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}
    void = ("NVIDIA_VISIBLE_DEVICES=void",)
    assert guard.is_guarded(WHOLE, void, hooks=hooks, linux=devices)
    assert guard.is_guarded(WHOLE, void, hooks=hooks, mounts=[{"destination": "/dev/nvidia0"}])
    assert not guard.is_guarded(MIG, void, hooks=hooks, linux=devices)
    assert not guard.is_guarded(WHOLE, void, hooks=hooks)


@pytest.mark.parametrize("words", [["nvc-cdi-hook"], ["nvc-py", "cdi-hook"], ["nvidia-ctk"]])
def test_the_hook_that_gives_the_share_is_found_in_the_form_of_nvidia_ctk(guard: GuardBench, words: list[str]) -> None:
    program = "/usr/bin/nvc-py" if "cdi-hook" in words else "/usr/bin/nvc-cdi-hook"
    hooks = {"createContainer": [{"path": program, "args": [*words, "hook", "share"]}]}
    devices = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}
    assert guard.is_guarded(WHOLE, ("NVIDIA_VISIBLE_DEVICES=void",), hooks=hooks, linux=devices, **ASKS)


def test_a_maximum_that_takes_nothing_away_brings_no_filter(guard: GuardBench) -> None:
    guard.configure('maximum = "mem=100%"')
    assert not guard.is_guarded()
    guard.configure('maximum = "mem=50%"')
    assert guard.is_guarded()


def test_the_annotation_keeps_a_container_out_only_where_the_node_lets_it(guard: GuardBench) -> None:
    off = {"annotations": {"nvc.share": "mem=4Gi", "nvc.guard": "off"}}
    assert guard.is_guarded(**off)
    guard.configure("allow-guard-off = true")
    assert not guard.is_guarded(**off)
    guard.configure('guard = "off"')
    assert not guard.is_guarded(**ASKS)
    guard.configure('guard = "require"')
    with pytest.raises(InputError, match=r"nvc\.guard=off is not allowed on this node"):
        guard.create(**off)


def test_without_an_agent_auto_goes_on_and_require_does_not(guard: GuardBench) -> None:
    guard.close()
    assert not guard.is_guarded(**ASKS)
    guard.configure('guard = "require"')
    with pytest.raises(
        PrivilegeError, match=r"this node requires a guard for shares, and no agent listens at .*/control"
    ):
        guard.create(**ASKS)
    assert not guard.is_guarded(), "a container without a share starts"


@pytest.mark.parametrize(
    ("share", "key"),
    [
        ("guard = 1", "share.guard"),
        ('guard = "maybe"', "share.guard"),
        ('allow-guard-off = "yes"', "share.allow-guard"),
    ],
)
def test_a_broken_setting_is_named(guard: GuardBench, share: str, key: str) -> None:
    guard.configure(share)
    with pytest.raises(InputError, match=key):
        guard.create(**ASKS)


def test_a_profile_with_a_listener_of_its_own_is_refused(guard: GuardBench) -> None:
    theirs = {"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/theirs", "syscalls": []}
    with pytest.raises(InputError, match="it announces calls to a listener already"):
        guard.create(**ASKS, linux={"seccomp": theirs})


@pytest.mark.parametrize("guarding", ["auto", "require"])
def test_an_agent_that_hangs_is_an_error_and_no_way_round_the_guard(
    guard: GuardBench, monkeypatch: pytest.MonkeyPatch, guarding: str
) -> None:
    guard.close()
    guard.configure(f'guard = "{guarding}"')
    monkeypatch.setattr(registered, "SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(guard.directory / "control"))
        silent.listen(4)
        with pytest.raises(AgentError, match=r"/control: no answer within 0\.1 s"):
            guard.create(**ASKS)


def test_an_agent_that_refuses_the_registration_is_believed(guard: GuardBench) -> None:
    assert guard.agent is not None

    def refuse(request: dict[str, Any]) -> list[dict[str, Any]]:
        raise AgentError("4096 containers are registered, and there can be no more")

    guard.agent.answers["register"] = refuse
    with pytest.raises(AgentError, match="there can be no more"):
        guard.create(**ASKS)


def test_a_profile_that_is_nearly_the_guards_is_refused(guard: GuardBench) -> None:
    profile = guard.create(**ASKS)
    assert profile is not None
    asked = len(guard.registered)
    with pytest.raises(InputError, match="it announces calls to a listener already"):
        guard.create(**ASKS, linux={"seccomp": {**profile, "syscalls": profile["syscalls"][1:]}})
    assert len(guard.registered) == asked


# What an engine made that applied a CDI specification itself.

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
