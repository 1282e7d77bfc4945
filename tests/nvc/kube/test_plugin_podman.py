"""Containers with the device plugin's CDI devices: each share is held to its part, whatever the container says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvc.cdi import files, text
from nvc.cdi.gather import gather
from nvc.inject.api import Config, Context
from nvc.kube import plugin_cdi
from nvc.kube.plugin_config import parse
from nvc.kube.plugin_devices import resources
from tests.nvc.kube.test_plugin_config import SAMPLE
from tests.support.bed import Bed
from tests.support.cdipodman import MEMORY, CdiPodman, forgotten, podman
from tests.support.fixtures import bed, need, whole_bed

__all__ = ["bed", "forgotten", "need", "podman", "whole_bed"]
pytestmark = pytest.mark.system
QUARTER = 143771 // 4 << 20


def offer(one: CdiPodman, bed: Bed, *, guarded: bool = False) -> tuple[str, ...]:
    """The plugin's specs are where the engine looks; the devices of its one resource's ids.

    guarded: as they are. Else without the word that wants a guard, which Podman with runc does not have.
    """
    (spec,) = (file.spec for file in files.find([str(one.specs)]))
    assert spec is not None
    config = parse(SAMPLE, "sample")
    with Context(Config(sim=str(bed.machine("h200")), cache=False)) as context:
        inventory = context.inventory()
        (found,), _ = resources(inventory.gpus, config)
        around, host = gather(context.host, inventory), context.host
    hook = spec.edits.hooks[0].path
    made = plugin_cdi.specs((found,), inventory, around, host, hook, only_one=config.only_one)
    written = text.write(made[plugin_cdi.SHARED], "json")
    (one.specs / "nvidia.replica.json").write_text(written if guarded else written.replace(",guard=require", ""))
    return tuple(f"{plugin_cdi.kind(found)}={found.cdi_names([name], dict(found.ids()))[0]}" for name, _ in found.ids())


def memory(one: CdiPodman, device: str, *attack: str) -> int:
    result = one.run([device], MEMORY, *attack)
    assert result.code == 0, result.text
    return int.from_bytes(bytes.fromhex(result.out.strip()), "little")


def test_each_of_four_shares_has_a_quarter(podman: Callable[..., CdiPodman], forgotten: None, bed: Bed) -> None:
    one = podman("runc", "hybrid")
    assert [QUARTER] * 4 == [memory(one, device) for device in offer(one, bed)]


def test_no_share_starts_without_the_guard(podman: Callable[..., CdiPodman], forgotten: None, bed: Bed) -> None:
    one = podman("runc", "hybrid")
    result = one.run([offer(one, bed, guarded=True)[0]], MEMORY)
    assert result.code != 0
    assert "guard" in result.text


@pytest.mark.parametrize(
    "attack",
    [
        "--annotation=nvc.share=mem=100%",
        "--annotation=nvc.share=off",
        "--annotation=nvc.guard=off",
        "--env=NVC_SHARE=mem=100%",
        "--env=NVC_SHARE=off",
        "--env=NVIDIA_VISIBLE_DEVICES=all",
        "--env=CUDA_DEVICE_MEMORY_LIMIT=100g",
        "--env=CUDA_DISABLE_CONTROL=true",
        "--env=NVIDIA_GPU_MEMORY_LIMIT=143771",
    ],
)
def test_no_container_gets_more_than_its_share(
    podman: Callable[..., CdiPodman], forgotten: None, bed: Bed, attack: str
) -> None:
    one = podman("runc", "hybrid")
    assert QUARTER == memory(one, offer(one, bed)[0], attack)


def test_two_shares_of_one_gpu_cannot_be_added_by_naming_two_devices(
    podman: Callable[..., CdiPodman], forgotten: None, bed: Bed
) -> None:
    """The plugin answers one device for both; an engine that is asked for two starts nothing or gives one."""
    one = podman("runc", "hybrid")
    device = offer(one, bed)[0]
    result = one.run([device, device.replace("1of4", "3of4")], MEMORY)
    assert result.code != 0
    assert "a container has one share of a GPU" in result.text
