"""Which containers get the guard's filter from nvc-runtime, and what is said of those that do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hook import bundle, environment
from hook.config import HookConfig
from hook.runtime import guard as under_test
from hook.runtime.journal import Journal
from hook.runtime.modify import modify
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
        self.added = self.restores = False

    def listen(self) -> None:
        self.agent = FakeAgent(str(self.directory / "control"), register=lambda request: [{"ok": True}])

    @property
    def registered(self) -> list[dict[str, Any]]:
        """What the agent got of containers."""
        return self.agent.asked if self.agent is not None else []

    def close(self) -> None:
        if self.agent is not None:
            self.agent.close()

    def configure(self, share: str = "") -> None:
        self.bench.configure(more=f'[agent]\ndirectory = "{self.directory}"\n[share]\n{share}')

    def create(self, machine: str = WHOLE, env: tuple[str, ...] = GPU, **changes: Any) -> dict[str, Any] | None:
        """Make a container; its seccomp profile. Raises NvcError."""
        self.bench.write(env, **changes)
        profile: dict[str, Any] | None = (self.edited(machine).get("linux") or {}).get("seccomp")
        assert not self.added or profile is not None
        return profile

    def edited(self, machine: str = WHOLE) -> dict[str, Any]:
        """config.json after both parts of nvc-runtime. Raises NvcError."""
        self.patch.setenv("NVC_SIM", str(self.machines / machine))
        content, directory = self.bench.content, str(self.bench.bundle)
        found = bundle.look(content, directory)
        variables = environment.parse(found.env)
        modify(content, found, variables, HookConfig(), str(self.bench.bin / "nvc-runtime"), directory, Journal())
        self.added = under_test.add(content, found, variables, HookConfig(), "c1", Journal(), restores=self.restores)
        return content

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


@pytest.mark.parametrize("rule", ["default", "maximum"])
def test_the_right_to_configure_mig_keeps_no_gpu_from_the_rules(guard: GuardBench, rule: str) -> None:
    """Attack (P11): CAP_SYS_ADMIN and MIG configuration on a GPU without MIG, and there was neither share nor guard."""
    guard.configure(f'{rule} = "mem=4Gi"')
    for variable in ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"):
        env = ["PATH=/bin", *GPU, f"{variable}=all"]
        process = {"env": env, "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}}
        assert guard.is_guarded(process=process)


FIXED = {"createContainer": [{"path": "/usr/bin/nvc-cdi-hook", "args": ["x", "share", "--share-fixed=mem=4Gi"]}]}
DEVICES = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}
VOID = ("NVIDIA_VISIBLE_DEVICES=void",)


@pytest.mark.parametrize("annotation", [{"nvc.share": "off"}, {"nvc.guard": "off"}, {"nvc.share": "nonsense"}])
def test_fixed_settings_are_guarded_whatever_annotations_say(guard: GuardBench, annotation: dict[str, str]) -> None:
    """Attack: nvc.guard=off, which the node allows for others, took the share of a CDI hook out of the guard."""
    guard.configure("allow-guard-off = true\nallow-off = true")
    for hooks, env, linux in (
        (FIXED, VOID, DEVICES),
        (
            {"prestart": [{"path": "/usr/bin/nvc-hook", "args": ["nvc-hook", "--share-fixed", "mem=4Gi", "prestart"]}]},
            GPU,
            {},
        ),
    ):
        assert guard.is_guarded(WHOLE, env, hooks=hooks, linux=dict(linux), annotations=annotation)


RENDER = {"path": "/dev/dri/renderD128", "type": "c", "major": 226, "minor": 128}
MODESET = {"path": "/dev/nvidia-modeset", "type": "c", "major": 195, "minor": 254}


def allow(**numbers: object) -> dict[str, object]:
    return {"allow": True, "type": "c", "access": "rw", **numbers}


def test_a_guarded_container_keeps_no_node_by_which_the_kernel_allocates(guard: GuardBench) -> None:
    """Attack (M10): a CDI specification gives DRM nodes and nvidia-modeset beside the GPU, and a share is asked for.

    What is allocated through them belongs to a client of the kernel's, which no guard sees.
    """
    numbers = [{key: node[key] for key in ("major", "minor")} for node in (RENDER, MODESET)]
    rules = [{"allow": False, "access": "rwm"}, allow(major=195, minor=0), *(allow(**one) for one in numbers)]
    rules += [allow(major=226), allow(major=226, minor=-1)]
    # docker run --device-cgroup-rule='c 195:* rwm': with CAP_MKNOD, nvidia-modeset is one mknod away.
    rules += [allow(major=195, access="rwm"), allow(major=195, minor=-1)]
    gpu = DEVICES["devices"][0]
    linux = {"devices": [gpu, RENDER, MODESET], "resources": {"devices": rules}}
    profile = guard.create(WHOLE, VOID, hooks=FIXED, linux=linux)
    assert profile is not None
    for again in ({}, {"seccomp": profile}):  # an engine may have put the filter there
        guard.bench.write(VOID, hooks=FIXED, linux={**linux, **again})
        content = guard.edited()
        assert content["linux"]["devices"] == [gpu]
        assert content["linux"]["resources"]["devices"] == rules[:2]


#: Where a key of config.json is read, what is there, and the spelling in which encoding/json takes it as well.
SPELLED = [
    ((), "linux", "Linux"),
    ((), "annotations", "ANNOTATIONS"),
    ((), "hooks", "hook\u017f"),
    ((), "mounts", "Mounts"),
    ((), "process", "proce\u017fs"),
    (("process",), "capabilities", "Capabilities"),
    (("mounts", 0), "source", "Source"),
    (("linux",), "seccomp", "Seccomp"),
    (("linux",), "seccomp", "\u017feccomp"),
    (("linux",), "devices", "Devices"),
    (("linux",), "resources", "re\u017fources"),
    (("linux",), "cgroupsPath", "cgroupspath"),
    (("linux", "namespaces", 0), "type", "Type"),
    (("linux", "resources"), "devices", "DEVICES"),
    *((("linux", "devices", 0), key, key.title()) for key in ("path", "type", "major", "minor")),
    *((("linux", "resources", "devices", 1), key, key.title()) for key in ("allow", "type", "major", "minor")),
    (("hooks", "prestart", 0), "path", "Path"),
    (("hooks",), "createContainer", "createcontainer"),
]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("place", "key", "spelling"), SPELLED)
def test_a_key_that_only_the_runtime_would_take_is_refused(
    guard: GuardBench, place: tuple[str | int, ...], key: str, spelling: str, replaced: bool
) -> None:
    """Attack: "Major": 226 after "major": 1, and the container had the DRM node. runc takes a key in any case of
    letters, with U+017F for an s too, and the last of two.
    """
    linux: dict[str, Any] = {
        "seccomp": None,
        "cgroupsPath": "/c1",
        "namespaces": [{"type": "mount"}],
        "devices": [{"path": "/dev/null", "type": "c", "major": 1, "minor": 3}],
        "resources": {"devices": [{"allow": False, "access": "rwm"}, allow(major=1, minor=3)]},
    }
    content: dict[str, Any] = {
        **ASKS,
        "linux": linux,
        "hooks": {"prestart": [{"path": "/bin/true"}], "createContainer": []},
        "mounts": [{"destination": "/x", "source": "/tmp", "type": "bind"}],
    }
    guard.bench.write(GPU, **content)
    content = guard.bench.content
    assert guard.is_guarded(WHOLE, GPU, **content)
    found: Any = content
    for step in place:
        found = found[step]
    value = found[key]
    if replaced and place[:1] in (("linux",), ("mounts",)):
        del found[key]
    found[spelling] = value
    asked = len(guard.registered)
    with pytest.raises(InputError, match=r"config\.json: .* in another spelling") as caught:
        guard.create(WHOLE, GPU, **content)
    assert repr(key) in caught.value.hint
    assert len(guard.registered) == asked


def test_without_a_guard_they_stay(guard: GuardBench) -> None:
    guard.bench.write(VOID, linux={"devices": [RENDER, MODESET]})
    assert guard.edited()["linux"]["devices"] == [RENDER, MODESET]


def test_a_driver_that_is_not_known_has_no_filter(guard: GuardBench, tmp_path: Path) -> None:
    """P6: the agent ended the container, whose driver it has no tables for."""
    version = guard.machines / WHOLE / "proc/driver/nvidia/version"
    known = version.read_text()
    version.write_text(known.replace("580.159.04", "615.65.06"))
    try:
        assert not guard.is_guarded(**ASKS)
        guard.configure('guard = "require"')
        with pytest.raises(PrivilegeError, match=r"requires a guard for shares, and driver 615\.65\.06 is not known"):
            guard.create(**ASKS)
    finally:
        version.write_text(known)
    assert guard.is_guarded(**ASKS)


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
        with pytest.raises(AgentError, match=r"/control: the agent does not answer \(no answer came within 0\.1 s\)"):
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
