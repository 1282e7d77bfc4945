"""What devices of claims and of the device plugin change in a container: the same, of whole GPUs and of shares."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvc.base.errors import DeviceError
from nvc.cdi.gather import gather
from nvc.cdi.generate import GenerateOptions, generate
from nvc.kube import plugin_cdi, plugin_devices
from nvc.kube.edits import Template, template
from nvc.kube.names import CAPABILITIES
from nvc.kube.plugin_config import GPU, MIG_STRATEGIES, equal
from nvc.model import Host, Inventory
from tests.nvc.kube.conftest import Machine

HOOK = "/opt/bin/nvc-cdi-hook"
OPTIONS = GenerateOptions(CAPABILITIES, hook_path=HOOK)
#: With nodes of displays and DRM, and one without.
MACHINES = ("rtx4090-desktop", "l40s-server", "h100x8")


@pytest.fixture(params=MACHINES)
def host(sim: Callable[[str], Host], request: pytest.FixtureRequest) -> Host:
    return sim(request.param)


@pytest.fixture
def found(host: Host) -> Inventory:
    return Machine(host).find()


@pytest.fixture
def made(host: Host, found: Inventory) -> Template:
    return template(found, host, OPTIONS)


def test_a_share_is_the_same_by_claim_and_by_plugin(host: Host, found: Inventory, made: Template) -> None:
    resources, _ = plugin_devices.resources(found.gpus, equal(4, GPU, MIG_STRATEGIES[0]))
    specs = plugin_cdi.specs(resources, found, gather(host, found), host, HOOK, only_one=True)
    spec = specs[plugin_cdi.SHARED]
    gpu = found.gpus[0]
    words = plugin_devices.share(gpu, 1, 4)
    (own,) = [one for one in spec.devices if gpu.uuid in one.name]

    assert made.edits(gpu.uuid, words.partition(":")[2]) == own.edits
    assert made.static.edits == spec.edits


def test_a_whole_gpu_is_that_of_a_generated_spec(host: Host, found: Inventory, made: Template) -> None:
    spec = generate(found, gather(host, found), host, OPTIONS.replace(strategies=("uuid",), all_device=False))
    uuid = found.gpus[0].uuid
    (wanted,) = [one.edits for one in spec.devices if one.name == uuid]
    own = made.edits(uuid, "")

    assert {*made.static.edits.device_nodes, *own.device_nodes} == {*spec.edits.device_nodes, *wanted.device_nodes}
    assert {*made.static.edits.additional_gids, *own.additional_gids} == {
        *spec.edits.additional_gids,
        *wanted.additional_gids,
    }
    assert (made.static.edits.mounts, made.static.edits.hooks) == (spec.edits.mounts, spec.edits.hooks)
    assert own.hooks == wanted.hooks


def test_a_share_has_no_node_of_displays(found: Inventory, made: Template) -> None:
    def nodes(share: str) -> set[str]:
        own = made.edits(found.gpus[0].uuid, share)
        return {node.path for node in (*made.static.edits.device_nodes, *own.device_nodes)}

    assert [path for path in nodes("mem=1Gi") if "modeset" in path or "/dri/" in path] == []
    assert {path for path in nodes("") if "modeset" in path} == {"/dev/nvidia-modeset"}


def test_a_pod_has_no_32_bit_library(found: Inventory, made: Template) -> None:
    """Each is a mount: a third of all, and of what a start waits for."""
    paths = {file.path for file in found.driver.libraries32}
    mounts = {mount.container_path for mount in made.static.edits.mounts}

    assert {file.path for file in found.driver.libraries} & mounts
    assert not paths & mounts
    directories = {path.rpartition("/")[0] for path in paths}
    words = [word for hook in made.static.edits.hooks for word in hook.args]
    assert not [word for word in words if word.partition("=")[2] in directories]


def test_a_gpu_that_is_not_there(made: Template) -> None:
    for share in ("", "mem=1Gi"):
        with pytest.raises(DeviceError, match="is not on this machine any more"):
            made.edits("GPU-none", share)
