"""The driver service on the simulated machines: what NVML tells is what the description says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.log import Log
from nvc.driver.service import start
from nvc.model import Host
from nvc.sim.create import create
from nvc.sim.description import load
from tests.support.native import build

MACHINES = ("h200", "h100x8", "a100-mig-dev", "a100-mig-proc", "v100-legacy")

#: An ordinary user reaches the driver root through a user namespace; root through chroot.
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and not Path("/proc/self/ns/user").exists(), reason="needs root or user namespaces"
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Host]:
    build()

    def make(name: str) -> Host:
        directory = tmp_path_factory.mktemp(name)
        # The NVML process has the overflow uid and needs search permission.
        directory.chmod(0o755)
        return create(str(directory / "machine"), name)

    return make


@pytest.mark.parametrize("name", MACHINES)
def test_nvml_tells_what_the_description_says(machine: Callable[[str], Host], name: str) -> None:
    described = load(name)
    with start(machine(name), uid=None, gid=None, deadline=30, log=Log.none()) as client:
        system = client.system()
        gpus = [client.gpu(index) for index in range(system.gpu_count)]
    assert (described.driver_version, described.cuda_version) == (system.driver_version, system.cuda_version)
    assert [
        (g.minor, g.model, g.uuid, g.bus_id, g.mig_enabled, [(m.uuid, m.gi, m.ci) for m in g.mig])
        for g in described.gpus
    ] == [
        (g.minor, g.name, g.uuid, f"{g.domain:04x}:{g.bus:02x}:{g.device:02x}.0", g.mig_enabled,
         [(m.uuid, m.gi, m.ci) for m in g.migs])
        for g in gpus
    ]  # fmt: skip
    models = [described.gpu_models[g.model] for g in described.gpus]
    assert [(m.brand, m.arch, m.mig_capable) for m in models] == [(g.brand, g.arch, g.mig_capable) for g in gpus]
