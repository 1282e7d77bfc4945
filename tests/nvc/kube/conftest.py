"""A driver in a thread, with a simulated machine, an API server and a kubelet's directory of its own."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import DetectionError
from nvc.inject.api import Config, Context
from nvc.kube import driver
from nvc.kube.cluster import Cluster
from nvc.kube.driver import Driver, Settings
from nvc.model import Gpu, Host, Inventory
from nvc.sim.create import create
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import FakeKubelet
from tests.support.leftovers import wait_until
from tests.support.native import build

NODE = "node-a"
#: A share of a GPU, as the scheduler writes it.
SHARE: dict[str, Any] = {
    "device": "gpu-0",
    "shareID": "3b0ddbc6-5a1e-4b4a-9b9a-0a2f4e6c8d10",
    "consumedCapacity": {"memory": "10Gi", "compute": "30"},
}


class Machine:
    """A simulated machine that tests change. inventory: what ``find`` finds; None: the driver is not there."""

    def __init__(self, host: Host) -> None:
        self.host = host
        with Context(Config(sim=host.root, cache=False)) as context:
            self.inventory: Inventory | None = context.inventory()
        self.looked = 0

    def find(self) -> Inventory:
        self.looked += 1
        if self.inventory is None:
            raise DetectionError("no driver")
        return self.inventory


class Running:
    """A driver that runs. said: its log."""

    def __init__(self, machine: Machine, kubeconfig: str, settings: Settings) -> None:
        self.said: list[dict[str, Any]] = []
        self.driver = Driver(
            settings,
            Cluster(kubeconfig),
            machine.host,
            machine.find,
            lambda event, **f: self.said.append({"event": event, **f}),
        )
        self.settings = settings
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.driver.run, args=(self._stop,))
        self._thread.start()
        wait_until(lambda: self.events("ready"))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.said if one["event"] == name]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Bed:
    """api: the API server. kubelet: asks the driver."""

    def __init__(self, directory: Path, machine: Machine, api: FakeCluster) -> None:
        self.machine, self.api = machine, api
        self.kubelet = FakeKubelet(directory / "kubelet")
        self.cdi = directory / "cdi"
        self.kernel_log = directory / "kmsg"
        self.kernel_log.touch()
        self.kubeconfig = api.kubeconfig(directory)
        self._running: list[Running] = []

    def start(self, **changes: Any) -> Running:
        settings = Settings(
            NODE,
            str(self.kubelet.directory),
            str(self.cdi),
            hook="/opt/bin/nvc-cdi-hook",
            kernel_log=str(self.kernel_log),
        )
        self._running.append(Running(self.machine, self.kubeconfig, settings.replace(**changes)))
        return self._running[-1]

    def stop(self, running: Running) -> None:
        self._running.remove(running)
        running.stop()

    @property
    def inventory(self) -> Inventory:
        assert self.machine.inventory is not None
        return self.machine.inventory

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.inventory.gpus

    def file(self, uid: str) -> Path:
        return self.cdi / f"nvc.dev-claim_{uid}.yaml"

    def close(self) -> None:
        for one in self._running:
            one.stop()


def generations(bed: Bed) -> set[int]:
    return {one["spec"]["pool"]["generation"] for one in list(bed.api.slices.values())}


def published(bed: Bed) -> int:
    """Waits until every GPU is; the generation."""
    wait_until(lambda: len(bed.api.slices) == 8 and len(generations(bed)) == 1)
    return generations(bed).pop()


def again(running: Running) -> None:
    """The machine's key has changed."""
    running.driver._key = None


def device_of(bed: Bed, name: str) -> dict[str, Any]:
    """As it is published; {} where it is not."""
    rows = [device for one in list(bed.api.slices.values()) for device in one["spec"]["devices"]]
    return next((row for row in rows if row["name"] == name), {"attributes": {"driverVersion": {}}})


@pytest.fixture(scope="session")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Host]:
    if os.geteuid() != 0:
        pytest.skip("device nodes are made by root only")
    build()
    known: dict[str, Host] = {}

    def get(name: str) -> Host:
        if name not in known:
            known[name] = create(str(tmp_path_factory.mktemp("kube") / name), name)
        return known[name]

    return get


@pytest.fixture
def bed(sim: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(driver, "LOOK_S", 0.05)
    # Paths of sockets have at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="nvc-kube-") as directory, FakeCluster() as api:
        made = Bed(Path(directory), Machine(sim("h100x8")), api)
        try:
            yield made
        finally:
            made.close()
