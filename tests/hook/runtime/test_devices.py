"""Device nodes and rules that nvc-runtime writes into config.json: those that the hook gives afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook import bundle, environment
from hook.config import HookConfig
from hook.runtime.cdi import _without
from hook.runtime.journal import Journal
from hook.runtime.modify import modify
from nvc.cdi.spec import CdiDeviceNode, CdiEdits
from nvc.sim import create
from nvc.sim.description import load
from nvc.sim.nodes import nodes
from tests.hook.runtime.conftest import Bench

pytestmark = pytest.mark.root

DESKTOP, SERVER, MIG = "rtx4090-desktop", "l40s-server", "a100-mig-dev"
Content = dict[str, Any]
Edit = Callable[..., Content]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machines")
    for name in (DESKTOP, SERVER, MIG):
        create.create(str(directory / name), name)
    return directory


@pytest.fixture
def edit(bench: Bench, machines: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """config.json of a container after nvc-runtime in its default mode."""

    def run(machine: str, *env: str, config: HookConfig | None = None, **changes: Any) -> Content:
        monkeypatch.setenv("NVC_SIM", str(machines / machine))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(bench.path / "etc"))
        bench.write(env, **changes)
        content, directory = bench.content, str(bench.bundle)
        found = bundle.look(content, directory)
        variables = environment.parse(found.env)
        own = str(bench.bin / "nvc-runtime")
        modify(content, found, variables, config or HookConfig(), own, directory, Journal())
        return content

    return run


def paths(content: Content) -> list[str]:
    return [node["path"] for node in (content.get("linux") or {}).get("devices") or []]


def rules(content: Content) -> set[tuple[int, int]]:
    found = content["linux"]["resources"]["devices"]
    assert all((one["allow"], one["type"], one["access"]) == (True, "c", "rw") for one in found)
    return {(one["major"], one["minor"]) for one in found}


def test_every_node_of_the_plan_is_there_with_its_rule_and_the_hook_still_runs(edit: Edit) -> None:
    content = edit(SERVER, "NVIDIA_VISIBLE_DEVICES=1")
    expected = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1"]
    assert paths(content) == expected
    known = {node.path: (node.major, node.minor) for node, _ in nodes(load(SERVER))}
    assert rules(content) == {known[path] for path in expected}
    numbers = {one["path"]: (one["major"], one["minor"]) for one in content["linux"]["devices"]}
    assert numbers == {path: known[path] for path in expected}
    assert [one["args"] for one in content["hooks"]["prestart"]] == [["nvc-hook", "prestart"]]


def test_with_graphics_the_gpus_own_drm_nodes_and_their_groups(edit: Edit) -> None:
    content = edit(DESKTOP, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=graphics,display")
    assert {"/dev/dri/card1", "/dev/dri/renderD129", "/dev/nvidia-modeset"} <= set(paths(content))
    assert not {"/dev/dri/card0", "/dev/dri/renderD128"} & set(paths(content))
    assert {(226, 1), (226, 129), (195, 254)} <= rules(content)
    (card,) = (one for one in content["linux"]["devices"] if one["path"] == "/dev/dri/card1")
    assert (card["gid"], card["fileMode"]) == (44, 0o660)
    assert content["process"]["user"]["additionalGids"] == [44, 105]


def test_groups_are_left_out_by_configuration(edit: Edit) -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=graphics")
    content = edit(DESKTOP, *env, config=HookConfig(additional_gids=False))
    assert "/dev/dri/card1" in paths(content)
    assert not (content["process"].get("user") or {}).get("additionalGids")


def test_without_its_nodes_a_cdi_specification_brings_no_groups(tmp_path: Path) -> None:
    """Mode cdi, NVIDIA_DRIVER_CAPABILITIES=compute: the DRM nodes went, and the groups video and render stayed."""
    gids = {"card1": 44, "renderD129": 105, "nvidia0": 46}
    for name, gid in gids.items():
        (tmp_path / name).touch()
        os.chown(tmp_path / name, 0, gid)
    made = tuple(CdiDeviceNode(f"/dev/{name}", str(tmp_path / name)) for name in gids)
    edits = CdiEdits(device_nodes=made, additional_gids=(44, 105, 46, 9))
    found = _without(edits, frozenset(f"{tmp_path}/{name}" for name in ("card1", "renderD129")))
    assert ([node.path for node in found.device_nodes], found.additional_gids) == (["/dev/nvidia0"], (46, 9))


def test_mig_devices_bring_their_nvcaps(edit: Edit) -> None:
    found = paths(edit(MIG, "NVIDIA_VISIBLE_DEVICES=0:0"))
    assert len([path for path in found if path.startswith("/dev/nvidia-caps/")]) == 2


def test_a_second_time_nothing_is_added(edit: Edit) -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    once = edit(DESKTOP, *env)
    kept = {key: once[key] for key in ("linux", "hooks", "process")}
    assert edit(DESKTOP, **kept) == once


def test_what_an_engine_has_put_there_stays(edit: Edit) -> None:
    mine = {"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}
    deny = {"allow": False, "access": "rwm"}
    linux = {"devices": [mine], "resources": {"devices": [deny], "memory": {"limit": 1}}}
    content = edit(SERVER, "NVIDIA_VISIBLE_DEVICES=0", linux=linux)
    assert content["linux"]["devices"][0] == mine
    assert content["linux"]["resources"]["devices"][0] == deny
    assert content["linux"]["resources"]["memory"] == {"limit": 1}


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        pytest.param(("NVIDIA_VISIBLE_DEVICES=17",), {}, id="a GPU that there is not"),
        pytest.param(("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=99"), {}, id="an unmet requirement"),
        pytest.param(("NVIDIA_VISIBLE_DEVICES=0",), {"annotations": {"nvc.share": "nonsense"}}, id="a wrong share"),
    ],
)
def test_what_the_hook_refuses_is_left_to_it(edit: Edit, env: tuple[str, ...], changes: Content) -> None:
    content = edit(SERVER, *env, **changes)
    assert not paths(content)
    assert content["hooks"]["prestart"]


def test_a_share_takes_display_nodes_out(edit: Edit) -> None:
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
    content = edit(DESKTOP, *env, annotations={"nvc.share": "mem=4Gi"})
    assert "/dev/nvidia0" in paths(content)
    assert not any("dri" in path or "modeset" in path for path in paths(content))
    assert not {(226, 1), (226, 129), (195, 254)} & rules(content)


def test_no_cgroups_leaves_config_json_alone(edit: Edit) -> None:
    content = edit(SERVER, "NVIDIA_VISIBLE_DEVICES=0", config=HookConfig(no_cgroups=True))
    assert "linux" not in content


def test_in_a_user_namespace_there_are_rules_and_no_nodes(edit: Edit) -> None:
    content = edit(SERVER, "NVIDIA_VISIBLE_DEVICES=0", linux={"namespaces": [{"type": "user"}]})
    assert not paths(content)
    assert (195, 0) in rules(content)


def test_none_is_the_driver_without_a_gpu(edit: Edit) -> None:
    found = paths(edit(SERVER, "NVIDIA_VISIBLE_DEVICES=none"))
    assert "/dev/nvidiactl" in found
    assert not {"/dev/nvidia0", "/dev/nvidia1"} & set(found)
