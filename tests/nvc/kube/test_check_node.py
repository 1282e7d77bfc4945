"""``nvc-py kube check``: what it says of a node."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import AgentError, NvcError
from nvc.doctor import runner
from nvc.doctor.finding import Finding
from nvc.doctor.probe import Probe
from nvc.kube import names
from nvc.kube.check import Cluster, Seen, checks
from nvc.kube.check_rows import ROWS
from nvc.model import Host
from tests.support import lookedat
from tests.support.lookedat import ask, bad, cluster, listed

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


class Node:
    """A node's files in which all is well. agent: what asking it raises."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problem: NvcError | None = None
        self.sockets: list[socket.socket] = []
        self.write("etc/containerd/config.toml", CONTAINERD).write("etc/nvc/config.toml", RULES)
        self.write("proc/self/mountinfo", DISK).write("var/lib/nvc/cdi/.keep", "")
        for program in ("nvc-runtime", "containerd", "runc"):
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


def by_crun(node: Node) -> Node:
    more = '[nvidia-container-runtime]\nruntimes = ["crun", "runc"]\n'
    return node.write("etc/nvc/config.toml", RULES + more).write("usr/bin/crun", "", 0o755)


KUBELET = names.KUBELET_DIRECTORY[1:]
CONTROLLERS = "sys/fs/cgroup/unified/cgroup.controllers"
HYBRID = (
    "31 27 0:27 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
    "32 27 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
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
        "nothing answers at",
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
    "no runtime": (lambda n: n.remove("usr/bin/runc"), "node-runtime", "error", "finds none of runc, crun"),
    "crun first": (by_crun, "node-runtime", "note", "becomes /usr/bin/crun; containerd 2 needs 1.14.3 or newer"),
    "crun first, hybrid cgroups": (
        lambda n: by_crun(n).write("proc/self/mountinfo", f"{DISK}{HYBRID}").write(CONTROLLERS, "hugetlb\n"),
        "node-runtime",
        "error",
        "refuses this machine's hybrid cgroups",
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
