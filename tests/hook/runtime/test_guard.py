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
from nvc import injection
from nvc.errors import InputError, PrivilegeError
from nvc.share import policyfile
from nvc.sim import create
from tests.hook.runtime.conftest import Bench

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
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)

    def listen(self) -> None:
        self._server.bind(str(self.directory / "listen"))
        self._server.listen(8)

    def close(self) -> None:
        self._server.close()

    def configure(self, share: str = "") -> None:
        self.bench.configure(more=f'[agent]\ndirectory = "{self.directory}"\n[share]\n{share}')

    def create(self, machine: str = WHOLE, env: tuple[str, ...] = GPU, **changes: Any) -> dict[str, Any] | None:
        """Make a container; its seccomp profile. Raises NvcError."""
        self.patch.setenv("NVC_SIM", str(self.machines / machine))
        self.bench.write(env, **changes)
        content, directory = self.bench.content, str(self.bench.bundle)
        found = bundle.look(content, directory)
        variables = environment.parse(found.env)
        rest = (directory, Journal())
        modify(content, found, variables, HookConfig(), str(self.bench.bin / "nvc-runtime"), *rest)
        added = under_test.add(content, found, variables, HookConfig(), *rest)
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
    assert not guard.is_guarded(MIG, ("NVIDIA_VISIBLE_DEVICES=all",))


def test_the_nodes_default_looks_at_the_nodes_that_a_cdi_specification_gives(guard: GuardBench) -> None:
    guard.configure('default = "mem=50%"')
    hooks = {"createContainer": [{"path": "/usr/bin/nvc-cdi-hook", "args": ["nvc-cdi-hook", "share"]}]}
    devices = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}
    void = ("NVIDIA_VISIBLE_DEVICES=void",)
    assert guard.is_guarded(WHOLE, void, hooks=hooks, linux=devices)
    assert guard.is_guarded(WHOLE, void, hooks=hooks, mounts=[{"destination": "/dev/nvidia0"}])
    assert not guard.is_guarded(MIG, void, hooks=hooks, linux=devices)
    assert not guard.is_guarded(WHOLE, void, hooks=hooks)


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
        PrivilegeError, match=r"this node requires a guard for shares, and no agent listens at .*/listen"
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
