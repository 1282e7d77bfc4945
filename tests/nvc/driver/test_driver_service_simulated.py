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
from tests.support import leftovers
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


def test_libcuda_is_loaded_while_nvml_is_initialised(machine: Callable[[str], Host]) -> None:
    """NVML loads it for CUDA's version: a cold start waited for that behind the initialisation."""
    host = machine("h200")
    description = Path(host.root, "etc/nvc-sim/machine")
    description.write_text(description.read_text().replace("end=1", "fault=nvmlInit slow 2000\nend=1"))
    with start(host, uid=None, gid=None, deadline=30, log=Log.none()) as client:
        pending = client.begin_system()
        maps = Path(f"/proc/{client.pid}/maps")
        assert leftovers.until(lambda: "libcuda.so" in maps.read_text(), seconds=10)
        assert not pending.is_ready(), "that goes on"
        assert client.system(pending).cuda_version == load("h200").cuda_version
        Path(host.root, "usr/lib/x86_64-linux-gnu/libcuda.so.1").unlink()
    with start(host, uid=None, gid=None, deadline=30, log=Log.none()) as client:
        assert client.system().gpu_count == 1, "whether it is there is nothing to NVML's initialisation"
