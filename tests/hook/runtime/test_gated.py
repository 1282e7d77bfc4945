"""Devices of other drivers, asked for by NVIDIA_GDS=enabled and its like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvc.cdi import gated
from tests.hook.runtime.conftest import Bench


def host(path: Path, *files: str) -> Path:
    """A driver root in which ``files`` are FIFOs, which need no right to make."""
    import os

    for name in files:
        place = path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(place)
    return path


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("NVIDIA_GDS", ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]),
        ("NVIDIA_MOFED", ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]),
        ("NVIDIA_GDRCOPY", ["/dev/gdrdrv"]),
        ("NVIDIA_NVSWITCH", ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"]),
    ],
)
def test_nodes(tmp_path: Path, variable: str, expected: list[str]) -> None:
    nodes = "nvidia-fs0 nvidia-fs1 nvidia0 gdrdrv gdrdrv2 nvidia-nvswitchctl nvidia-nvswitch0 infiniband/uverbs0"
    root = host(tmp_path, *(f"dev/{name}" for name in f"{nodes} infiniband/rdma_cm infiniband/issm0".split()))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/cufile.json").write_text("{}")

    found = gated.edits(variable, str(root))

    assert found is not None
    assert [node.path for node in found.device_nodes] == expected
    assert [node.host_path for node in found.device_nodes] == [f"{root}{path}" for path in expected]
    files = ["/etc/cufile.json"] if variable == "NVIDIA_GDS" else []
    assert [mount.container_path for mount in found.mounts] == files


def test_a_host_without_them(tmp_path: Path) -> None:
    assert gated.edits("NVIDIA_GDS", str(tmp_path)) is None
    assert gated.edits("NVIDIA_OTHER", str(tmp_path)) is None


@pytest.mark.parametrize(
    ("env", "given"),
    [
        (("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDRCOPY=enabled"), True),
        (("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDRCOPY=1"), False),
        (("NVIDIA_VISIBLE_DEVICES=none", "NVIDIA_GDRCOPY=enabled"), False),
        (("NVIDIA_GDRCOPY=enabled",), False),
    ],
)
def test_only_beside_a_gpu(bench: Bench, tmp_path: Path, env: tuple[str, ...], given: bool) -> None:
    root = host(tmp_path / "host", "dev/gdrdrv")
    bench.write(env)

    assert bench.create(env={"NVC_SIM": str(root)}).returncode == 0
    assert given is ("/dev/gdrdrv" in [node["path"] for node in bench.content.get("linux", {}).get("devices", [])])


@pytest.mark.parametrize("accepted", [True, False])
def test_only_where_variables_count(bench: Bench, tmp_path: Path, accepted: bool) -> None:
    """The kubelet's annotation gives the GPU; the pod's own variable asked for the rest, and got it."""
    (bench.path / "cdi").mkdir()
    device = {"name": "0", "containerEdits": {"env": ["A=b"]}}
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [device]}
    (bench.path / "cdi/n.json").write_text(json.dumps(spec))
    bench.configure(more=f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{bench.path}/cdi"]')
    path = bench.path / "etc/nvc/config.toml"
    key = "accept-nvidia-visible-devices-envvar-when-unprivileged"
    path.write_text(f"{key} = {str(accepted).lower()}\n{path.read_text()}")
    kubelets = {"cdi.k8s.io/nvc": "nvidia.com/gpu=0", "io.kubernetes.cri.container-type": "container"}
    bench.write(["NVIDIA_GDRCOPY=enabled"], annotations=kubelets)

    assert bench.create(env={"NVC_SIM": str(host(tmp_path / "host", "dev/gdrdrv"))}).returncode == 0
    assert "A=b" in bench.content["process"]["env"]
    assert accepted is ("/dev/gdrdrv" in [node["path"] for node in bench.content.get("linux", {}).get("devices", [])])


def test_what_is_not_there_is_a_warning(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "log"
    bench.write(("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled"))

    assert bench.run("--log", str(log), "create", "-b", str(bench.bundle), "c").returncode == 0
    assert "NVIDIA_GDS=enabled, but this host has no such devices" in log.read_text()
