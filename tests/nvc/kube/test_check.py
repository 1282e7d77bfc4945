"""``nvc-py kube check``: each thing that can be wrong with a cluster or a node is found, with what to do."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import AgentError, InputError, NvcError
from nvc.doctor import runner
from nvc.doctor.finding import Finding
from nvc.doctor.probe import Probe
from nvc.kube import api, names
from nvc.kube.check import Cluster, Seen, checks
from nvc.kube.check_rows import ROWS
from nvc.model import Host
from tests.support import lookedat
from tests.support.lookedat import ADMISSION, RESOURCES, cluster, device_class, listed, node, slice_of

SLICES, CLASSES = f"{RESOURCES}/v1/resourceslices", f"{RESOURCES}/v1/deviceclasses"
POLICIES, BINDINGS = f"{ADMISSION}/validatingadmissionpolicies", f"{ADMISSION}/validatingadmissionpolicybindings"
CONFIGZ = "/api/v1/nodes/gpu-1/proxy/configz"
METRIC = 'kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="ALPHA"} '
CONTAINERD = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "/var/lib/nvc/cdi"]
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvc.options]
BinaryName = "/usr/bin/nvc-runtime"
"""
CRIO = """[crio.runtime]
cdi_spec_dirs = ["/var/lib/nvc/cdi"]
[crio.runtime.runtimes.nvc]
runtime_path = "/usr/bin/nvc-runtime"
"""
RULES = 'accept-nvidia-visible-devices-envvar-when-unprivileged = false\n[share]\nguard = "require"\n'
DISK = "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def ask(table: dict[str, Any]) -> Callable[[str], Any]:
    def get(path: str) -> Any:
        found = table.get(path)
        if isinstance(found, int):
            raise api.Refused(f"the API server answers {found} to {path}", found)
        return found

    return get


def looked(table: dict[str, Any], name: str = "gpu-1") -> list[Finding]:
    seen = Seen(Probe(Host()), Cluster(ask(table), name))
    return [finding for row in checks(seen, ("cluster",)) for finding in runner.examine(row, seen.probe)]


def bad(found: list[Finding]) -> set[tuple[str, str]]:
    return {(finding.level, finding.check) for finding in found if finding.level in ("warning", "error")}


@pytest.mark.parametrize("version", ["v1.34.9", "v1.35.4", "v1.36.1", "v1.37.0-rc.1+x"])
def test_a_cluster_that_is_well(version: str) -> None:
    found = looked(cluster(version))
    assert set() == bad(found)
    assert {row.name for row, _ in ROWS if row.area == "cluster"} == {finding.check for finding in found}


def without(path: str, name: str, table: dict[str, Any]) -> dict[str, Any]:
    return listed(*(one for one in table[path]["items"] if one["metadata"]["name"] != name))


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
    "a policy is not bound": (
        lambda t: {BINDINGS: without(BINDINGS, "nvc-parameters", t)},
        "cluster-policies",
        "warning",
        "has no binding",
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


class Node:
    """A node's files in which all is well. agent: what asking it raises."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problem: NvcError | None = None
        self.sockets: list[socket.socket] = []
        self.write("etc/containerd/config.toml", CONTAINERD).write("etc/nvc/config.toml", RULES)
        self.write("proc/self/mountinfo", DISK).write("var/lib/nvc/cdi/.keep", "")
        for program in ("nvc-runtime", "containerd"):
            self.write(f"usr/bin/{program}", "", 0o755)
        for name in (names.REGISTRY, names.PLUGINS, names.DEVICE_PLUGINS):
            (root / names.KUBELET_DIRECTORY[1:] / name).mkdir(parents=True)
        self.listen(f"{names.REGISTRY}/{names.DRIVER}-reg.sock")

    def write(self, name: str, text: str, mode: int = 0o644) -> Node:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return self

    def remove(self, name: str) -> None:
        path = self.root / name
        path.rmdir() if path.is_dir() else path.unlink()

    def listen(self, name: str, *, is_dead: bool = False) -> None:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(self.root / names.KUBELET_DIRECTORY[1:] / name))
        if not is_dead:
            made.listen()
        self.sockets.append(made)

    def _ask(self) -> None:
        if self.problem is not None:
            raise self.problem

    def look(self, table: dict[str, Any] | None = None) -> list[Finding]:
        host = Host(root=str(self.root), system=str(self.root))
        of = Cluster(ask(table), "gpu-1") if table is not None else None
        seen = Seen(Probe(host, kernel=str(self.root)), of, agent=self._ask)
        return [finding for row in checks(seen, ("node",)) for finding in runner.examine(row, seen.probe)]


@pytest.fixture
def here() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="nvc-node-") as directory:
        made = Node(Path(directory))
        yield made
        for one in made.sockets:
            one.close()


def test_a_node_that_is_well(here: Node) -> None:
    found = here.look()
    assert {"ok"} == {finding.level for finding in found}, [one for one in found if one.level != "ok"]
    assert {row.name for row, _ in ROWS if row.area == "node"} == {finding.check for finding in found}


def test_a_node_with_cri_o_that_is_well(here: Node) -> None:
    here.remove("etc/containerd/config.toml")
    here.remove("usr/bin/containerd")
    here.write("usr/bin/crio", "", 0o755).write("etc/crio/crio.conf.d/99-nvc.conf", CRIO)
    assert set() == bad(here.look())


KUBELET = names.KUBELET_DIRECTORY[1:]
NODE_CASES: dict[str, tuple[Callable[[Node], object], str, str, str]] = {
    "no plugins_registry": (
        lambda n: (
            (n.root / KUBELET / names.REGISTRY / f"{names.DRIVER}-reg.sock").unlink(),
            n.remove(f"{KUBELET}/{names.REGISTRY}"),
        ),
        "node-kubelet",
        "warning",
        "plugins_registry does not exist",
    ),
    "nothing serves": (
        lambda n: n.remove(f"{KUBELET}/{names.REGISTRY}/{names.DRIVER}-reg.sock"),
        "node-served",
        "error",
        "neither the driver",
    ),
    "a driver that ended": (
        lambda n: n.listen(f"{names.REGISTRY}/{names.DRIVER}-2-reg.sock", is_dead=True),
        "node-served",
        "warning",
        "nobody answers at",
    ),
    "both serve": (
        lambda n: n.listen(f"{names.DEVICE_PLUGINS}/nvc-nvidia.com-gpu.sock"),
        "node-served",
        "warning",
        "both serve",
    ),
    "another handler": (
        lambda n: n.write("etc/containerd/config.toml", CONTAINERD.replace("runtimes.nvc", "runtimes.nvidia")),
        "node-handler",
        "error",
        "has the handler nvc, nvc-runtime is nvidia",
    ),
    "no handler": (
        lambda n: n.write("etc/containerd/config.toml", CONTAINERD.replace("nvc-runtime", "runc")),
        "node-handler",
        "error",
        "does not know nvc-runtime",
    ),
    "a handler without its program": (
        lambda n: n.remove("usr/bin/nvc-runtime"),
        "node-handler",
        "error",
        "which does not exist",
    ),
    "CDI is off": (
        lambda n: n.write("etc/containerd/config.toml", CONTAINERD.replace("enable_cdi = true", "")),
        "node-cdi",
        "error",
        "enable_cdi is off",
    ),
    "specs are looked for elsewhere": (
        lambda n: n.write("etc/containerd/config.toml", CONTAINERD.replace(', "/var/lib/nvc/cdi"', "")),
        "node-cdi",
        "error",
        "and not in /var/lib/nvc/cdi",
    ),
    "a directory for all": (
        lambda n: (n.root / "var/lib/nvc/cdi").chmod(0o777),
        "node-cdi-directory",
        "error",
        "written by others than root",
    ),
    "a directory in memory": (
        lambda n: n.write("proc/self/mountinfo", f"{DISK}30 27 0:26 / /var/lib/nvc rw - tmpfs tmpfs rw\n"),
        "node-cdi-directory",
        "error",
        "is on tmpfs",
    ),
    "a broken spec": (
        lambda n: n.write("var/lib/nvc/cdi/a.json", "{"),
        "node-cdi-directory",
        "error",
        "engines ignore the whole file",
    ),
    "no agent": (lambda n: setattr(n, "problem", AgentError("it is stopped")), "node-agent", "error", "it is stopped"),
    "GPUs by variables": (
        lambda n: n.write("etc/nvc/config.toml", "[share]\nguard = 'require'\n"),
        "node-variables",
        "error",
        "every GPU",
    ),
    "guard not required": (
        lambda n: n.write("etc/nvc/config.toml", RULES.replace("require", "auto")),
        "node-guard",
        "warning",
        "without the guard",
    ),
    "guard may be left": (
        lambda n: n.write("etc/nvc/config.toml", f"{RULES}allow-guard-off = true\n"),
        "node-guard",
        "error",
        "nvc.guard=off",
    ),
    "a file that is not TOML": (
        lambda n: n.write("etc/nvc/config.toml", "["),
        "node-guard",
        "error",
        "is not TOML",
    ),
}


@pytest.mark.parametrize("case", NODE_CASES)
def test_what_is_wrong_with_a_node(here: Node, case: str) -> None:
    change, check, level, words = NODE_CASES[case]
    change(here)
    found = [one for one in here.look() if (one.check, one.level) == (check, level)]
    assert [one for one in found if words in one.what], here.look()
    assert all(one.fix and one.why for one in found)


def test_the_runtime_class_says_which_handler_is_wanted(here: Node) -> None:
    table = cluster()
    table["/apis/node.k8s.io/v1/runtimeclasses"] = listed(lookedat.named(names.RUNTIME_CLASS, handler="nvidia"))
    assert ("error", "node-handler") in bad(here.look(table))
    here.write("etc/containerd/config.toml", CONTAINERD.replace("runtimes.nvc", "runtimes.nvidia"))
    assert set() == bad(here.look(table))


def test_containerd_2_has_cdi_on(here: Node) -> None:
    here.write("etc/containerd/config.toml", CONTAINERD.replace("enable_cdi = true", ""))
    assert set() == bad(here.look(cluster()))


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
