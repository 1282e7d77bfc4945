"""What the kubelet counts on a machine, what a container's ids come to, and which ids it had better get."""

from __future__ import annotations

import pytest

from nvc.base.errors import DeviceError, InputError
from nvc.kube.plugin_config import GPU, PluginConfig, Replicated, equal
from nvc.kube.plugin_devices import Resource, resources, share
from nvc.kube.plugin_prefer import Place
from nvc.kube.plugin_prefer import preferred as prefer
from nvc.model import Gpu
from tests.support import inventories

GIB = 1 << 30
SHARED = f"{GPU}.shared"


def gpu(index: int, *profiles: str, memory: int = 80 * GIB) -> Gpu:
    migs = (
        inventories.mig_device(index, place, 7 + place, 0, f"MIG-{index}-{place}").replace(profile=profile)
        for place, profile in enumerate(profiles)
    )
    return inventories.gpu(index, f"00000000:{index:02x}:00.0", f"GPU-{index}", *migs).replace(memory=memory)


TWO = (gpu(0), gpu(1))
MIG = (gpu(0, "1g.10gb", "1g.10gb+me"), gpu(1, "1g.10gb"), gpu(2))


def preferred(of: Resource, available: list[str], must: list[str], size: int, places: dict[str, Place]) -> list[str]:
    return prefer({name: device.gpu for name, device in of.ids()}, of.replicas, available, must, size, places)


def names(found: tuple[Resource, ...]) -> dict[str, list[str]]:
    return {resource.name: [name for name, _ in resource.ids()] for resource in found}


def test_whole_gpus() -> None:
    found, notes = resources(TWO, PluginConfig())
    assert {GPU: ["GPU-0", "GPU-1"]} == names(found)
    assert () == notes
    assert ("GPU-1",) == found[0].cdi_names(["GPU-1"], dict(found[0].ids()))


def test_four_shares_of_each_gpu() -> None:
    (found,), _ = resources(TWO, equal(4))
    assert [f"GPU-{gpu}::{n}" for gpu in (0, 1) for n in range(4)] == names((found,))[GPU]
    assert ("GPU-1-1of4",) == found.cdi_names(["GPU-1::3"], dict(found.ids()))
    assert "GPU-0:mem=20Gi,weight=10,guard=require" == share(TWO[0], 1, 4)


def test_several_shares_of_one_gpu_are_held_to_their_sum() -> None:
    (found,), _ = resources(TWO, equal(4))
    assert ("GPU-0-2of4", "GPU-1-1of4") == found.cdi_names(["GPU-0::3", "GPU-1::0", "GPU-0::1"], dict(found.ids()))
    assert ("GPU-0-1of4",) == found.cdi_names(["GPU-0::3", "GPU-0::3"], dict(found.ids()))
    assert "GPU-0:mem=40Gi,weight=20,guard=require" == share(TWO[0], 2, 4)
    assert "GPU-0:mem=80Gi,weight=1000,guard=require" == share(TWO[0], 128, 128)


@pytest.mark.parametrize("replicas", [3, 7, 1000])
def test_shares_never_come_to_more_than_the_gpu_has(replicas: int) -> None:
    odd = gpu(0, memory=80 * GIB - 4097)
    of_one = int(share(odd, 1, replicas).partition("mem=")[2].partition("Mi")[0])
    assert 0 <= odd.memory - replicas * (of_one << 20) < replicas << 20


def test_ids_that_are_not_there_are_refused() -> None:
    (found,), _ = resources(TWO, equal(4))
    for name in ("GPU-0::4", "GPU-0", "GPU-2::0", "", "GPU-0::01"):
        with pytest.raises(DeviceError, match="there is no device"):
            found.cdi_names(["GPU-0::0", name], dict(found.ids()))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Replicated(GPU, 2, SHARED), {SHARED: ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]}),
        (Replicated(GPU, 2, SHARED, ("1",)), {SHARED: ["GPU-1::0", "GPU-1::1"], GPU: ["GPU-0"]}),
        (Replicated(GPU, 2, SHARED, ("GPU-0",)), {SHARED: ["GPU-0::0", "GPU-0::1"], GPU: ["GPU-1"]}),
        (Replicated(GPU, 2, SHARED, count=1), {SHARED: ["GPU-0::0", "GPU-0::1"], GPU: ["GPU-1"]}),
        (Replicated(GPU, 2, count=2), {GPU: ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]}),
    ],
)
def test_some_devices_shared_and_renamed(row: Replicated, expected: dict[str, list[str]]) -> None:
    assert expected == names(resources(TWO, PluginConfig(replicated=(row,)))[0])


@pytest.mark.parametrize(
    ("strategy", "gpus", "expected"),
    [
        ("none", MIG, {GPU: ["GPU-2"]}),
        ("mixed", MIG, {
            GPU: ["GPU-2"], "nvidia.com/mig-1g.10gb": ["MIG-0-0", "MIG-1-0"], "nvidia.com/mig-1g.10gb.me": ["MIG-0-1"],
        }),
        ("single", MIG[1:2], {GPU: ["MIG-1-0"]}),
        ("single", TWO, {GPU: ["GPU-0", "GPU-1"]}),
    ],
)  # fmt: skip
def test_mig_devices(strategy: str, gpus: tuple[Gpu, ...], expected: dict[str, list[str]]) -> None:
    found, notes = resources(gpus, PluginConfig(mig_strategy=strategy))
    assert expected == names(found)
    assert (strategy == "none") is bool(notes)


@pytest.mark.parametrize(
    ("gpus", "config", "message"),
    [
        (MIG, PluginConfig(mig_strategy="single"), "GPUs of this machine differ: 1g.10gb, 1g.10gb.me, no MIG"),
        ((gpu(0, ""),), PluginConfig(mig_strategy="mixed"), "does not say the profile of MIG device 0:0"),
        (MIG[1:2], PluginConfig("single", (Replicated(GPU, 2),)), "shares of a MIG device cannot be held"),
        (TWO, PluginConfig(replicated=(Replicated(GPU, 2, count=1),)), "under one name"),
        (TWO, PluginConfig(replicated=(Replicated(GPU, 2, SHARED, count=3),)), "there are 2"),
        (TWO, PluginConfig(replicated=(Replicated(GPU, 2, SHARED, ("7",)),)), "it has no device '7'"),
        ((gpu(0, memory=0),), equal(2), "does not say how much memory GPU 0 has"),
        ((gpu(0, memory=GIB),), equal(17), "less than 64Mi"),
        (
            (gpu(0, "1g.10gb"), gpu(1)),
            PluginConfig("mixed", (Replicated(GPU, 2, "nvidia.com/mig-1g.10gb"),)),
            "two kinds of devices have this name",
        ),
    ],
)
def test_what_a_machine_cannot_keep_is_refused(gpus: tuple[Gpu, ...], config: PluginConfig, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("+", ".")):
        resources(gpus, config)


def test_a_resource_that_no_device_has_is_told() -> None:
    found, notes = resources(TWO, PluginConfig(replicated=(Replicated("nvidia.com/mig-1g.5gb", 2),)))
    assert {GPU: ["GPU-0", "GPU-1"]} == names(found)
    assert ("nvidia.com/mig-1g.5gb: no device of this machine has this name",) == notes


def test_shares_spread_over_gpus() -> None:
    (found,), _ = resources((*TWO, gpu(2)), equal(4))
    free = [name for name, _ in found.ids() if name not in ("GPU-0::0", "GPU-0::1", "GPU-1::0")]
    assert ["GPU-2::0"] == preferred(found, free, [], 1, {})
    assert ["GPU-2::0", "GPU-1::1", "GPU-2::1"] == preferred(found, free, [], 3, {})
    assert ["GPU-0::2", "GPU-2::0"] == preferred(found, free, ["GPU-0::2"], 2, {})
    assert ["GPU-1::3"] == preferred(found, ["GPU-1::3"], [], 5, {})


def test_a_thousand_pods_fill_gpus_evenly() -> None:
    (found,), _ = resources((*TWO, gpu(2)), equal(300))
    free, given = [name for name, _ in found.ids()], dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), 0)
    for _ in range(100):
        (name,) = preferred(found, free, [], 1, {})
        free.remove(name)
        given[name.partition("::")[0]] += 1
        assert max(given.values()) - min(given.values()) <= 1


#: Two switches below each of two processors.
PLACES = {
    f"GPU-{n}": Place(f"/sys/devices/pci{n // 4}/switch{n // 2}/gpu{n}", n // 4) for n in range(8)
}  # fmt: skip


@pytest.mark.parametrize(
    ("taken", "must", "size", "expected"),
    [
        ([], [], 2, {0, 1}),
        ([0], [], 2, {2, 3}),
        ([0, 2, 4], [], 2, {6, 7}),
        ([], [], 4, {0, 1, 2, 3}),
        ([1], [], 4, {4, 5, 6, 7}),
        ([], ["GPU-5"], 2, {4, 5}),
        ([], ["GPU-5"], 3, {4, 5, 6}),
        # A single GPU from the pair that is broken already.
        ([0], [], 1, {1}),
        ([], [], 8, set(range(8))),
        ([0, 1], [], 8, set(range(2, 8))),
        ([], [], 0, set()),
    ],
)
def test_whole_gpus_lie_together(taken: list[int], must: list[str], size: int, expected: set[int]) -> None:
    (found,), _ = resources([gpu(n) for n in range(8)], PluginConfig())
    free = [f"GPU-{n}" for n in range(8) if n not in taken]
    chosen = preferred(found, free, must, size, PLACES)
    assert {f"GPU-{n}" for n in expected} == set(chosen)
    assert len(chosen) == len(set(chosen))
    assert must == chosen[: len(must)]


def test_without_places_the_machines_order_counts() -> None:
    (found,), _ = resources([gpu(n) for n in range(4)], PluginConfig())
    assert ["GPU-1", "GPU-2"] == preferred(found, ["GPU-3", "GPU-2", "GPU-1"], [], 2, {})
