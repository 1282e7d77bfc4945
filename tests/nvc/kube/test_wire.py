"""The kubelet's interfaces as it speaks them: names of methods, numbers of fields."""

from __future__ import annotations

import ast
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from nvc.kube import wire

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("service", "names"),
    [
        pytest.param(wire.REGISTRATION, ["GetInfo", "NotifyRegistrationStatus"], id="registration"),
        pytest.param(wire.DRA, ["NodePrepareResources", "NodeUnprepareResources"], id="dra"),
        pytest.param(wire.HEALTH, ["NodeWatchResources"], id="health"),
        pytest.param(wire.DEVICE_PLUGIN_REGISTRATION, ["Register"], id="device-plugin-registration"),
        pytest.param(
            wire.DEVICE_PLUGIN,
            ["GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate", "PreStartContainer"],
            id="device-plugin",
        ),
    ],
)
def test_a_service_has_these_methods(service: str, names: list[str]) -> None:
    assert names == [method.name for method in wire.methods(service)]


def test_bytes_are_those_of_the_kubelets_own_messages() -> None:
    # Written by hand from field numbers: key = number * 8 + 2 (length-delimited), length, text.
    device = wire.message("k8s.io.kubelet.pkg.apis.dra.v1.Device")(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"
    )
    assert b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x01c\x2a\x01s" == device.SerializeToString()
    claim = wire.message("k8s.io.kubelet.pkg.apis.dra.v1.Claim")(namespace="n", uid="u", name="m")
    assert b"\x0a\x01n\x12\x01u\x1a\x01m" == claim.SerializeToString()
    info = wire.message("pluginregistration.PluginInfo")(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v" == info.SerializeToString()


def test_a_share_id_that_was_not_given_is_not_sent() -> None:
    # Kubelets before 1.36 do not know the field.
    assert b"" == wire.message("k8s.io.kubelet.pkg.apis.dra.v1.Device")().SerializeToString()


class _Servicer:
    def NodeWatchResources(self, request: object, context: object) -> object:
        reply = wire.message("v1alpha1.NodeWatchResourcesResponse")
        yield reply(devices=[{"device": {"pool_name": "p", "device_name": "d"}, "health": 1}])
        yield reply()


def test_one_servicer_answers_under_two_names(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((wire.handlers(wire.HEALTH, _Servicer()),))
    server.add_generic_rpc_handlers((wire.handlers(wire.HEALTH, _Servicer(), wire.HEALTH_V1),))
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
            for name in ("", wire.HEALTH_V1):
                watch = wire.stub(channel, wire.HEALTH, name).NodeWatchResources
                replies = list(watch(wire.message("v1alpha1.NodeWatchResourcesRequest")(), timeout=10))
                assert ["d", None] == [r.devices[0].device.device_name if r.devices else None for r in replies]
    finally:
        server.stop(0).wait()


def test_the_command_line_imports_neither_grpc_nor_the_client() -> None:
    # Every command pays for what the groups import.
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport nvc.cli.kube, nvc.cli.main, nvc.cli.groups\n"
        "print(*sys.modules)"
    )

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    assert [] == sorted({"grpc", "google.protobuf", "kubernetes"} & set(loaded))


def test_only_this_package_imports_them() -> None:
    found = set()
    for package in ("nvc", "hook", "rpc"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if any(name.partition(".")[0] in ("grpc", "google", "kubernetes") for name in names):
                    found.add(path.relative_to(ROOT).parts[:2])
    assert {("nvc", "kube")} == found
