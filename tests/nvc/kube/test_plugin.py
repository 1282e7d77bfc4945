"""The device plugin against a kubelet that speaks the same interface."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from nvc.base.errors import InitializationError
from nvc.cdi import files
from nvc.cdi.gather import gather
from nvc.inject.api import Config, Context
from nvc.kube import places, plugin_cdi
from nvc.kube import plugin as plugin_module
from nvc.kube.plugin import Plugin, Service
from nvc.kube.plugin_config import GPU, PluginConfig, equal, parse
from nvc.kube.plugin_devices import resources
from nvc.kube.plugin_prefer import Place
from nvc.model import Host, Inventory
from nvc.share.spec import parse as parse_share
from nvc.sim.create import create
from tests.nvc.kube.test_plugin_config import SAMPLE
from tests.support.kubelet import Kubelet
from tests.support.native import build

pytestmark = pytest.mark.root
HOOK = "/usr/bin/nvc-cdi-hook"


class Machine:
    """A simulated machine, and what was found on it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        with Context(Config(sim=host.root, cache=False)) as context:
            self.inventory: Inventory = context.inventory()

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.inventory.gpus]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Machine]:
    build()
    known: dict[str, Machine] = {}

    def get(name: str) -> Machine:
        if name not in known:
            known[name] = Machine(create(str(tmp_path_factory.mktemp("plugin") / name), name))
        return known[name]

    return get


class Running:
    """A plugin in a thread of this process, with its kubelet. reasons: of GPUs, what their health says."""

    def __init__(self, machine: Machine, config: PluginConfig, directory: Path) -> None:
        self.machine, self.directory = machine, directory
        self.reasons: dict[str, str] = {}
        self.said: list[tuple[str, dict[str, Any]]] = []
        found, _ = resources(machine.inventory.gpus, config)
        around = gather(machine.host, machine.inventory)
        specs = plugin_cdi.specs(found, machine.inventory, around, machine.host, HOOK, only_one=config.only_one)
        self.cdi = directory / "cdi"
        plugin_cdi.write(specs, str(self.cdi))
        where = places.find(machine.host, machine.inventory.gpus)
        self.plugin = Plugin(
            [Service(resource, config, where) for resource in found],
            str(directory),
            lambda: dict(self.reasons),
            lambda event, **fields: self.said.append((event, fields)),
        )
        self.failure: list[Exception] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.plugin.run(self._stop)
        except InitializationError as error:
            self.failure.append(error)

    def ended(self) -> bool:
        self._thread.join(20)
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        assert self.ended()

    def shares(self) -> dict[str, str]:
        """CDI device -> the words of its share hook, as an engine finds them in the directory."""
        found = {}
        for file in files.find([str(self.cdi)]):
            assert file.spec is not None, file.problems
            for device in file.spec.devices:
                words = [word for hook in device.edits.hooks for word in hook.args if word.startswith("--share")]
                found[f"{file.spec.kind}={device.name}"] = " ".join(words)
        return found


@pytest.fixture
def kubelet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubelet]:
    monkeypatch.setattr(plugin_module, "LOOK_S", 0.05)
    monkeypatch.setattr(plugin_module, "HEALTH_S", 0.05)
    # Not pytest's directory: a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="nvc-kubelet-") as directory, Kubelet(Path(directory)) as started:
        yield started


@pytest.fixture
def run(machine: Callable[[str], Machine], kubelet: Kubelet) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def start(name: str = "h200", config: PluginConfig | None = None) -> Running:
        made.append(Running(machine(name), config or equal(4), kubelet.directory.parent))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def names(reply: Any) -> list[str]:
    return [device.name for device in reply.cdi_devices]


def test_nvidias_sample_gives_four_shares_of_a_gpu_each_held_to_a_quarter(
    run: Callable[..., Running], kubelet: Kubelet
) -> None:
    running = run(config=parse(SAMPLE, "sample"))
    (gpu,) = running.machine.inventory.gpus
    assert {f"{gpu.uuid}::{n}": "Healthy" for n in range(4)} == kubelet.has(GPU)

    shares = running.shares()
    memory = []
    for name in kubelet.has(GPU):
        (reply,) = kubelet.allocate(GPU, [name])
        (device,) = names(reply)
        assert shares[device].startswith("--share-fixed=")
        asked = parse_share(shares[device].removeprefix("--share-fixed="))
        assert asked.requires_guard
        ((selector, share),) = asked.per_gpu
        assert (gpu.uuid, 10) == (selector, share.weight)
        memory.append(share.memory)
        assert not reply.envs and not reply.annotations and not reply.devices and not reply.mounts
    assert [gpu.memory // 4 >> 20 << 20] * 4 == memory


def test_all_four_in_one_container_are_the_whole_gpu_and_no_more(run: Callable[..., Running], kubelet: Kubelet) -> None:
    running = run()
    (gpu,) = running.machine.inventory.gpus
    (reply,) = kubelet.allocate(GPU, list(kubelet.has(GPU)))
    (device,) = names(reply)
    ((_, share),) = parse_share(running.shares()[device].removeprefix("--share-fixed=")).per_gpu
    assert (gpu.memory // 4 >> 20 << 20) * 4 == share.memory


def test_five_hundred_pods_are_admitted(run: Callable[..., Running], kubelet: Kubelet) -> None:
    """As the kubelet does it: the free ids, the preferred one of them, the container's device. Times: docs/measured."""
    running = run("h100x8", equal(100))
    free, given = set(kubelet.has(GPU)), []
    for _ in range(500):
        (chosen,) = kubelet.prefer(GPU, sorted(free), 1)
        free.remove(chosen)
        (reply,) = kubelet.allocate(GPU, [chosen])
        given += names(reply)
    assert 500 == len(given)
    assert set(given) <= set(running.shares())
    counts = [given.count(f"nvc.dev/replica={uuid}-1of100") for uuid in running.machine.uuids]
    assert (62, 63) == (min(counts), max(counts))


def test_containers_of_one_pod_have_an_answer_each(run: Callable[..., Running], kubelet: Kubelet) -> None:
    running = run("h100x8", equal(2))
    one, other = running.machine.uuids[:2]
    kubelet.has(GPU)
    replies = kubelet.allocate(GPU, [f"{one}::0"], [f"{other}::0", f"{other}::1", f"{one}::1"])
    kind = "nvc.dev/replica"
    assert [[f"{kind}={one}-1of2"], [f"{kind}={one}-1of2", f"{kind}={other}-2of2"]] == [
        sorted(names(reply), key=lambda name: name.replace(one, "")) for reply in replies
    ]


def test_whole_gpus_and_mig_devices_have_no_share(run: Callable[..., Running], kubelet: Kubelet) -> None:
    running = run("a100-mig-dev", PluginConfig(mig_strategy="mixed"))
    profiles = {mig.profile for gpu in running.machine.inventory.gpus for mig in gpu.mig_devices}
    assert {"1g.10gb", "2g.20gb"} <= profiles
    expected = {GPU, *(f"nvidia.com/mig-{profile}" for profile in profiles)}
    kubelet.wait(lambda: expected == set(kubelet.devices))
    assert {""} == set(running.shares().values())
    for resource, devices in kubelet.devices.items():
        for name in devices:
            (reply,) = kubelet.allocate(resource, [name])
            assert [f"nvc.dev/gpu={name}"] == names(reply)
            assert f"nvc.dev/gpu={name}" in running.shares()


def test_names_as_an_annotation(run: Callable[..., Running], kubelet: Kubelet) -> None:
    config = parse(b"flags: {plugin: {deviceListStrategy: [cdi-annotations]}}", "")
    running = run("h100x8", config)
    first, second = running.machine.uuids[:2]
    kubelet.has(GPU)
    (reply,) = kubelet.allocate(GPU, [first, second])
    assert [] == names(reply)
    assert {"cdi.k8s.io/nvc_nvidia.com_gpu": f"nvc.dev/gpu={first},nvc.dev/gpu={second}"} == dict(reply.annotations)


@pytest.mark.parametrize(
    ("config", "ids", "message"),
    [
        (
            equal(4),
            ["{uuid}::4"],
            "there is no device '{uuid}::4'; the node's GPUs or the plugin's configuration changed",
        ),
        (equal(4), ["../../etc/passwd"], "there is no device '../../etc/passwd'"),
        (
            equal(4).replace(only_one=True),
            ["{uuid}::0", "{uuid}::1"],
            "2 are asked for, and failRequestsGreaterThanOne",
        ),
    ],
)
def test_what_cannot_be_given_ends_with_a_message(
    run: Callable[..., Running], kubelet: Kubelet, config: PluginConfig, ids: list[str], message: str
) -> None:
    (uuid,) = run(config=config).machine.uuids
    kubelet.has(GPU)
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.allocate(GPU, [name.format(uuid=uuid) for name in ids])
    assert message.format(uuid=uuid) in refused.value.details()
    assert refused.value.details().startswith("nvc-py: ")
    assert 1 == len(kubelet.allocate(GPU, [f"{uuid}::0"]))


def test_a_kubelet_that_starts_again_has_the_plugin_again(run: Callable[..., Running], kubelet: Kubelet) -> None:
    running = run()

    def registered() -> int:
        return [event for event, _ in running.said].count("registered")

    said = 0
    for _ in range(3):
        devices = kubelet.has(GPU)
        kubelet.wait(lambda said=said: registered() > said)  # which it says when it has the answer
        said = registered()
        assert 1 == len(kubelet.allocate(GPU, [next(iter(devices))]))
        kubelet.stop()
        kubelet.start()
    assert 4 == len(kubelet.has(GPU))
    kubelet.wait(lambda: registered() > said)
    assert registered() <= 7, "one more where a look fell between a kubelet's end and its next start"


def test_a_plugin_waits_for_a_kubelet_that_is_not_there_yet(run: Callable[..., Running], kubelet: Kubelet) -> None:
    kubelet.stop()
    running = run()
    end = time.monotonic() + 20
    while not running.said and time.monotonic() < end:
        time.sleep(0.01)
    assert "the kubelet does not listen" in running.said[0][1]["message"]
    kubelet.start()
    assert 4 == len(kubelet.has(GPU))
    # The list reaches the kubelet before the plugin has the answer to Register and says so.
    kubelet.wait(lambda: ["warning", "registered"] == [event for event, _ in running.said])


def test_a_gpu_that_becomes_unhealthy_is_told_and_not_given(run: Callable[..., Running], kubelet: Kubelet) -> None:
    running = run("h100x8", equal(2))
    bad, good = running.machine.uuids[:2]
    kubelet.has(GPU)
    running.reasons[bad] = "Xid 79: it fell off the bus"
    kubelet.wait(lambda: "Unhealthy" in kubelet.devices[GPU].values())
    assert {f"{bad}::0", f"{bad}::1"} == {name for name, of in kubelet.devices[GPU].items() if of == "Unhealthy"}
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.allocate(GPU, [f"{good}::0", f"{bad}::0"])
    assert "GPU 0: Xid 79: it fell off the bus" in refused.value.details()
    assert 1 == len(kubelet.allocate(GPU, [f"{good}::0"]))
    running.reasons.clear()
    kubelet.wait(lambda: "Unhealthy" not in kubelet.devices[GPU].values())
    assert 1 == len(kubelet.allocate(GPU, [f"{bad}::0"]))


def sockets(kubelet: Kubelet) -> list[tuple[str, int, int]]:
    """Of plugins."""
    found = ((path.name, path.stat()) for path in kubelet.directory.iterdir() if path.name != "kubelet.sock")
    return [(name, status.st_ino, status.st_ctime_ns) for name, status in found]


def test_a_second_plugin_of_the_same_resource_takes_over(run: Callable[..., Running], kubelet: Kubelet) -> None:
    """And the first one ends: two would take each other's socket away for ever."""
    first = run()
    kubelet.has(GPU)
    second = run()
    kubelet.wait(lambda: len(kubelet.registrations) == 2)
    made = sockets(kubelet)
    assert first.ended()
    assert "another program made" in str(first.failure[0])
    assert made == sockets(kubelet), "the end of the first one takes no other's away"
    assert 4 == len(kubelet.has(GPU))
    assert not second.failure


def test_sockets_are_roots_alone_and_go_with_the_plugin(run: Callable[..., Running], kubelet: Kubelet) -> None:
    running = run()
    kubelet.has(GPU)
    (socket,) = [path for path in kubelet.directory.iterdir() if path.name != "kubelet.sock"]
    assert 0 == socket.stat().st_mode & 0o077
    running.stop()
    assert ["kubelet.sock"] == os.listdir(kubelet.directory)


def test_cdi_files_of_what_is_not_offered_any_more_go(run: Callable[..., Running]) -> None:
    directory = run().cdi
    assert ["device-plugin-replica.json"] == os.listdir(directory)
    data = json.loads((directory / "device-plugin-replica.json").read_text())
    assert "nvc.dev/replica" == data["kind"]
    plugin_cdi.write({}, str(directory))
    assert [] == os.listdir(directory)


def test_numa_nodes_are_told(machine: Callable[[str], Machine], tmp_path: Path) -> None:
    one = machine("h200").inventory.gpus[0]
    bus = one.proc_path.rpartition("/")[2]
    real = tmp_path / "sys/devices/pci0000:00" / bus
    real.mkdir(parents=True)
    (real / "numa_node").write_text("1\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices" / bus).symlink_to(real)
    found = places.find(Host(system=str(tmp_path)), [one, one.replace(uuid="GPU-x", proc_path="/none/0000:99:00.0")])
    assert {one.uuid: Place(str(real), 1), "GPU-x": Place()} == found
    (resource,), _ = resources([one], equal(2))
    service = Service(resource, equal(2), found)
    assert [[1], [1]] == [[node.ID for node in device.topology.nodes] for device in service._list({}).devices]
