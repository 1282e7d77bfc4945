"""``nvc-py kube check``: what it says of a cluster, and its command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.doctor import runner
from nvc.doctor.finding import Finding
from nvc.doctor.probe import Probe
from nvc.kube import api, names
from nvc.kube.check import Cluster, Seen, checks
from nvc.kube.check_rows import ROWS
from nvc.model import Host
from tests.support import lookedat
from tests.support.lookedat import ADMISSION, RESOURCES, ask, bad, cluster, device_class, listed, node, policy, slice_of

SLICES, CLASSES = f"{RESOURCES}/v1/resourceslices", f"{RESOURCES}/v1/deviceclasses"
POLICIES, BINDINGS = f"{ADMISSION}/validatingadmissionpolicies", f"{ADMISSION}/validatingadmissionpolicybindings"
CONFIGZ = "/api/v1/nodes/gpu-1/proxy/configz"
METRIC = 'kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="ALPHA"} '


def looked(table: dict[str, Any], name: str = "gpu-1") -> list[Finding]:
    seen = Seen(Probe(Host()), Cluster(ask(table), name))
    return [finding for row in checks(seen, ("cluster",)) for finding in runner.examine(row, seen.probe)]


@pytest.mark.parametrize("version", ["v1.34.9", "v1.35.4", "v1.36.1", "v1.37.0-rc.1+x"])
def test_a_cluster_that_is_well(version: str) -> None:
    found = looked(cluster(version))
    assert set() == bad(found)
    assert {row.name for row, _ in ROWS if row.area == "cluster"} == {finding.check for finding in found}


def without(path: str, name: str, table: dict[str, Any]) -> dict[str, Any]:
    return listed(*(one for one in table[path]["items"] if one["metadata"]["name"] != name))


def replaced(path: str, one: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    return listed(*without(path, one["metadata"]["name"], table)["items"], one)


def other_driver(driver: str) -> dict[str, Any]:
    made = slice_of("gpu-1")
    made["spec"]["driver"] = driver
    return made


#: What is changed in a cluster that is well -> the check that finds it, its level, words of it.
CASES: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str, str, str]] = {
    "no Kubernetes": (lambda t: {"/version": {"gitVersion": "nginx"}}, "cluster-version", "error", "is no Kubernetes"),
    "an old one": (
        lambda t: {"/version": {"gitVersion": "v1.33.2"}},
        "cluster-version",
        "warning",
        "no claims of devices",
    ),
    "DRA not served": (lambda t: {RESOURCES: None}, "cluster-api", "error", "serves no resource.k8s.io"),
    "DRA in beta only": (
        lambda t: {RESOURCES: {"versions": [{"version": "v1beta1"}]}},
        "cluster-api",
        "error",
        "served as v1beta1",
    ),
    "fields dropped, gate off": (
        lambda t: {SLICES: listed(slice_of("gpu-1", allowMultipleAllocations=False)), "/metrics": f"{METRIC}0\n"},
        "cluster-gate",
        "error",
        "takes the whole one",
    ),
    "no class": (
        lambda t: {CLASSES: without(CLASSES, names.CLASS_ANY, t)},
        "cluster-classes",
        "error",
        "nvc-gpu does not exist",
    ),
    "a class of another driver": (
        lambda t: {
            CLASSES: listed(
                device_class(names.CLASS_ANY),
                {"metadata": {"name": names.CLASS_GUARDED}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}},
            )
        },
        "cluster-classes",
        "warning",
        "does not select gpu.nvc.dev",
    ),
    "a policy is missing": (
        lambda t: {POLICIES: without(POLICIES, "nvc-confinement", t)},
        "cluster-policies",
        "warning",
        "nvc-confinement does",
    ),
    "a policy that leaves out extended resources": (
        lambda t: {POLICIES: replaced(POLICIES, policy("nvc-confinement", older=True), t)},
        "cluster-policies",
        "warning",
        "an older chart's; not refused: pods that get a GPU by an extended resource",
    ),
    "a policy that lets a claim have priority: high": (
        lambda t: {POLICIES: replaced(POLICIES, policy("nvc-parameters", older=True), t)},
        "cluster-policies",
        "warning",
        "an older chart's; not refused: priority: high in a claim",
    ),
    "a policy is not bound": (
        lambda t: {BINDINGS: without(BINDINGS, "nvc-parameters", t)},
        "cluster-policies",
        "warning",
        "has no binding",
    ),
    "nothing refuses what ends the scheduler of 1.34": (
        lambda t: {"/version": {"gitVersion": "v1.34.13"}},
        "cluster-policies",
        "error",
        "nvc-one-device does",
    ),
    "an old kubelet": (
        lambda t: {"/api/v1/nodes": listed(node("gpu-1", "v1.33.1"))},
        "cluster-nodes",
        "error",
        "cannot prepare fractions",
    ),
    "an old engine": (
        lambda t: {"/api/v1/nodes": listed(node("gpu-1", engine="containerd://1.6.20"))},
        "cluster-nodes",
        "error",
        "no CDI",
    ),
    "an old CRI-O": (
        lambda t: {"/api/v1/nodes": listed(node("gpu-1", engine="cri-o://1.27.0"))},
        "cluster-nodes",
        "error",
        "no CDI",
    ),
    "a node that is not there": (
        lambda t: {"/api/v1/nodes": listed()},
        "cluster-nodes",
        "error",
        "there is no node gpu-1",
    ),
    "gate off in the kubelet": (
        lambda t: {CONFIGZ: {"kubeletconfig": {"featureGates": {"DRAConsumableCapacity": False}}}},
        "cluster-kubelet-gate",
        "error",
        "is off in the kubelet",
    ),
    "gate not set in a kubelet of 1.34": (
        lambda t: {CONFIGZ: {"kubeletconfig": {}}, "/api/v1/nodes/gpu-1": node("gpu-1", "v1.34.9")},
        "cluster-kubelet-gate",
        "error",
        "is off in the kubelet",
    ),
    "no slice": (
        lambda t: {SLICES: listed(slice_of("gpu-2")), "/api/v1/nodes": listed(node("gpu-1"), node("gpu-2"))},
        "cluster-slices",
        "error",
        "node gpu-1 offers no GPU",
    ),
    "half of the slices": (
        lambda t: {SLICES: listed(slice_of("gpu-1", count=2))},
        "cluster-slices",
        "warning",
        "has 1 of 2 slices",
    ),
    "a GPU with a fault": (
        lambda t: {SLICES: listed(slice_of("gpu-1", taints=[{"key": "x"}]))},
        "cluster-slices",
        "warning",
        "gpu-0 has a fault",
    ),
    "NVIDIA's DRA driver": (
        lambda t: {SLICES: listed(slice_of("gpu-1"), other_driver("gpu.nvidia.com"))},
        "cluster-others",
        "error",
        "gpu.nvidia.com offers the same GPUs",
    ),
    "NVIDIA's device plugin": (
        lambda t: {"/api/v1/nodes": listed(node("gpu-1", **{"nvidia.com/gpu": "8"}))},
        "cluster-others",
        "error",
        "a device plugin gives its GPUs as nvidia.com/gpu",
    ),
    "two for one name": (
        lambda t: {
            "/api/v1/nodes": listed(node("gpu-1", **{"nvidia.com/gpu": "8"})),
            CLASSES: listed(
                device_class(names.CLASS_ANY, extendedResourceName="nvidia.com/gpu"), device_class(names.CLASS_GUARDED)
            ),
        },
        "cluster-others",
        "error",
        "a device plugin serves nvidia.com/gpu, and so does class nvc-gpu",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_a_cluster(case: str) -> None:
    change, check, level, words = CASES[case]
    table = cluster()
    found = [one for one in looked(table | change(table)) if (one.check, one.level) == (check, level)]
    assert [one for one in found if words in one.what], found
    assert all(one.fix and one.why for one in found)


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({SLICES: listed(), "/metrics": 403}, "cluster-gate", "cannot be seen"),
        ({SLICES: listed()}, "cluster-slices", ""),
        ({"/apis/node.k8s.io/v1/runtimeclasses": listed()}, "cluster-runtime-class", "there is no RuntimeClass"),
        ({CONFIGZ: 403, "/api/v1/nodes/gpu-1": node("gpu-1", "v1.34.9")}, "cluster-kubelet-gate", "cannot be seen"),
        ({"/version": {"gitVersion": "v1.35.0"}}, "cluster-version", "behind gates: DRAConsumableCapacity"),
    ],
)
def test_what_is_not_wrong_or_cannot_be_seen_is_a_note(change: dict[str, Any], check: str, words: str) -> None:
    found = [one for one in looked(cluster() | change, "gpu-1" if words else "") if one.check == check]
    told = [one for one in found if one.level != "ok"]
    assert ["note"] == [one.level for one in told]
    assert words in told[0].what


def test_metrics_say_the_gate_before_there_are_slices() -> None:
    for number, level in (("1", "ok"), ("0", "error")):
        found = looked(cluster("v1.34.1") | {SLICES: listed(), "/metrics": f"{METRIC}{number}\n"}, "")
        assert [level] == [one.level for one in found if one.check == "cluster-gate"]


def test_what_the_user_may_not_read_is_told_for_each_check() -> None:
    found = looked(dict.fromkeys(cluster(), 403))
    assert {"warning"} == {one.level for one in found if one.check != "cluster-kubelet-gate"}
    assert all("403" in one.what for one in found)
    assert "# use a kubeconfig that may read it" == found[0].fix


@pytest.mark.parametrize("broken", [[], "text", 3.5, {"items": 3}, {"items": [None, 7, {"metadata": 3, "spec": []}]}])
def test_nonsense_of_an_api_server_is_no_failure_of_ours(broken: Any) -> None:
    for path in cluster():
        found = looked(cluster() | {path: broken})
        assert not [one.what for one in found if "the check failed" in one.what]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nvc", "kube", "check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_asks_an_api_server(tmp_path: Path) -> None:
    table = cluster()
    with lookedat.server(table) as url:
        file = lookedat.kubeconfig(tmp_path / "kubeconfig", url)
        words = ("--only=cluster", f"--kubeconfig={file}", "--node=gpu-1")
        result = call(*words, "--json")
        assert (0, "") == (result.returncode, result.stderr)
        data = json.loads(result.stdout)
        assert "ok" == data["level"] and {"cluster"} == {one["area"] for one in data["findings"]}
        del table[CLASSES]
        result = call(*words, "--problems")
        assert 3 == result.returncode
        assert "error    cluster-classes: device class nvc-gpu does not exist" in result.stdout
        # A token that is not known.
        lookedat.kubeconfig(file, url, "wrong")
        assert "the API server answers 401" in call(*words).stdout
    assert "does not answer" in call(*words).stdout


@pytest.mark.parametrize("content", ["", "{", "[]", "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfig_that_is_none_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    result = call("--only=cluster", f"--kubeconfig={tmp_path}/kubeconfig")
    assert 1 == result.returncode
    assert f"input error: {tmp_path}/kubeconfig: " in result.stderr
    assert "Traceback" not in result.stderr


def test_where_the_kubeconfig_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(api, "_NODE_FILES", ())
    assert "/a" == api.kubeconfig("/a")
    with pytest.raises(InputError, match="no kubeconfig is known"):
        api.kubeconfig()
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").touch()
    assert str(tmp_path / ".kube/config") == api.kubeconfig()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert "" == api.kubeconfig()
    monkeypatch.setenv("KUBECONFIG", "/b")
    assert "/b" == api.kubeconfig()
