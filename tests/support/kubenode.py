"""A node of the bed's cluster: containerd, kubelet, our agent and driver; its GPUs are simulated, or this machine's."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from nvc.agent.status import StatusTenant, ask
from nvc.kube.names import CDI_DIRECTORY, DRIVER
from nvc.share.protocol import CONTROL, Client
from tests.support import cgroupview, crun_handlers, daemons, launchers, leftovers
from tests.support.bed import Bed
from tests.support.cluster import Cluster, Object
from tests.support.containerd import IMAGE
from tests.support.cri import write_image
from tests.support.daemons import Daemon
from tests.support.runtimes import Result, execute

NAME = "node-1"
ADDRESS = "10.99.0.1"
METRICS = "127.0.0.1:9400"
_RULES = Path("/etc/nvc/config.toml")
_SETTINGS = f'[agent]\nmetrics = "{METRICS}"\n'
_CLAIM_FILE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CONTAINERD = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.internal.v1.restart", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.nri.v1.nri",
]

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{image}"

[plugins.'io.containerd.cri.v1.runtime']
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "{cdi}"]
  # Root may not lower oom_score_adj on every machine.
  restrict_oom_score_adj = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni}"]
    conf_dir = "/etc/cni/net.d"
"""
_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "bed",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {"type": "host-local", "subnet": "10.97.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    # A hybrid cgroup tree without systemd.
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "localStorageCapacityIsolation": False,
    "makeIPTablesUtilChains": False,
    "maxOpenFiles": 10000,
    "maxPods": 500,
    "resolvConf": "",
    "registerNode": True,
    "serializeImagePulls": True,
    "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
    # What an administrator waits for between two looks at a pod is not what these tests are about.
    "syncFrequency": "10s",
    "nodeStatusUpdateFrequency": "5s",
}


class Node:
    """One node with the bed's commands. Paths are the product's defaults: the machine is the bed's own.

    machine: a simulated one's name, "" for this machine's own GPUs. has_crun: with crun_handlers' handlers.
    """

    def __init__(self, cluster: Cluster, bed: Bed, machine: str, *, has_crun: bool = False) -> None:
        self.cluster, self.bed, self.has_crun = cluster, bed, has_crun
        self.machine = bed.machine(machine) if machine else None
        #: Of our commands, for the simulated machine.
        self.options = ["--sim", str(self.machine)] if machine else []
        self.place = bed.directory("node")
        self.cdi = CDI_DIRECTORY
        self.env = {**cluster.env, **bed.env, **({"NVC_SIM": str(self.machine)} if machine else {})}
        self.daemons: dict[str, Daemon] = {}
        self._ready: dict[str, daemons.Ready] = {}
        _add_extra(Path(bed.commands.directory).parent / "lib/nvc-py")

    def start(self) -> None:
        """containerd, agent and kubelet. Raises daemons.NotReady."""
        self.start_containerd()
        self.import_image(self.bed.base)
        self.start_agent()
        self.start_kubelet()

    def start_containerd(self) -> None:
        """With the configuration that our command makes of it: a runtime ``nvc`` beside runc, and CDI."""
        config = Path("/etc/containerd/config.toml")
        config.parent.mkdir(exist_ok=True)
        for directory in ("/etc/cdi", CDI_DIRECTORY, "/etc/cni/net.d"):
            Path(directory).mkdir(parents=True, exist_ok=True)
        cni = self.cluster.node_programs / "debian/usr/lib/cni"
        config.write_text(_CONTAINERD.format(image=IMAGE, cdi=CDI_DIRECTORY, cni=cni))
        Path("/etc/cni/net.d/10-bed.conflist").write_text(json.dumps(_NETWORK))
        words = ("runtime", "configure", "--runtime=containerd", "--runtime-name=nvc", "--cdi", f"--config={config}")
        self.bed.call(self.bed.commands.nvc, *words, check=True)
        # As an administrator may have it: what a pod says in annotations reaches the runtime.
        own, passed = "runtimes.nvc]\n", 'pod_annotations = ["*"]\ncontainer_annotations = ["*"]\n'
        config.write_text(config.read_text().replace(own, own + passed))
        if self.has_crun:
            made = crun_handlers.configured(self.bed.directory("crun"), _SETTINGS, str(self.bed.commands.runtime))
            config.write_text(config.read_text() + made)
        self.run("containerd", ["containerd", "--config", str(config)], lambda: self.ctr("version").code == 0)

    def ctr(self, *words: str) -> Result:
        """containerd's client, in kubelet's namespace of it."""
        command = [str(self.cluster.node_programs / "ctr"), "-n", "k8s.io", *words]
        return execute(command, env=self.env)

    def pid(self, container: str) -> int:
        """Of a container's first process."""
        lines = [line.split() for line in self.ctr("task", "ls").out.splitlines()]
        return next(int(line[1]) for line in lines if line[0] == container)

    def import_image(self, rootfs: Path, name: str = IMAGE, env: Sequence[str] = ()) -> None:
        """An image of one layer. Raises AssertionError."""
        archive = self.place / "image.tar"
        write_image(rootfs, archive, [f"{leftovers.VARIABLE}={self.bed.token}", *env], name=name)
        done = self.ctr("images", "import", str(archive))
        archive.unlink()
        assert done.code == 0, done.text

    def start_agent(self) -> None:
        """Raises daemons.NotReady."""
        self._write_rules()
        words = [self.bed.commands.nvc, *self.options, "agent"]
        self.run("agent", words, lambda: self.share("ls").code == 0)

    def share(self, *words: str) -> Result:
        """``nvc-py share``."""
        return self.bed.call(self.bed.commands.nvc, *self.options, "share", *words)

    @contextlib.contextmanager
    def rules(self, text: str) -> Iterator[None]:
        """More in the node's config.toml for a while; the agent reads it again."""
        self._write_rules(text)
        try:
            yield
        finally:
            self._write_rules()

    def _write_rules(self, more: str = "") -> None:
        _RULES.parent.mkdir(exist_ok=True)
        # First, because keys before the first section are the file's own.
        _RULES.write_text(f"{more}{_SETTINGS}")
        process = self.daemons["agent"].process if "agent" in self.daemons else None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGHUP)

    def claim_files(self) -> list[str]:
        """CDI files of claims: their names begin with the claim's uid."""
        return sorted(path.name for path in Path(CDI_DIRECTORY).iterdir() if _CLAIM_FILE.search(path.name))

    def tenants(self) -> tuple[StatusTenant, ...]:
        """The agent's. Raises NvcError."""
        with Client(CONTROL, 60.0) as client:
            return ask(client).tenants

    def start_kubelet(self, ready: Callable[[], bool] | None = None) -> None:
        """ready: what is waited for (default: that the node is). Raises daemons.NotReady."""
        for directory in {cgroupview.ROOT, *cgroupview.ROOT.glob("*/")}:
            if directory.is_mount() and (directory / "cgroup.procs").exists():
                (directory / self.bed.token).mkdir(exist_ok=True)
                _prepare_cgroup(directory, directory / self.bed.token)
        # kubelet's own sockets are below it, and a kernel takes 107 bytes.
        gates = {"KubeletInUserNamespace": True, **dict.fromkeys(_gates(self.cluster.gates), True)}
        config = {**_KUBELET, "cgroupRoot": f"/{self.bed.token}", "featureGates": gates}
        (self.place / "kubelet.json").write_text(json.dumps(config))
        words = [
            str(self.cluster.programs / "kubelet"),
            f"--config={self.place}/kubelet.json",
            f"--kubeconfig={self.cluster.configs[f'kubelet-{NAME}']}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
        ]
        self.run("kubelet", words, ready or self.is_ready)

    def is_ready(self) -> bool:
        """Whether the API server says so, of a kubelet that reported since its start."""
        node = self.cluster.admin.find(f"/api/v1/nodes/{NAME}")
        if node is None:
            return False
        ready = [one for one in node["status"].get("conditions", []) if one["type"] == "Ready"]
        return any(
            one["status"] == "True"
            and datetime.fromisoformat(one["lastHeartbeatTime"]).timestamp() >= self.daemons["kubelet"].launched_s
            for one in ready
        )

    def start_driver(self, *options: str, instance: str = "driver") -> None:
        """``nvc-py kube driver``; kubelet knows it, and it has published, when this returns. Raises NotReady."""
        words = self.driver_words(self.cluster.configs["admin"], *options)
        self.run(instance, words, lambda: bool(self.slices()) and '"registered"' in self.log(instance, 1000))

    def driver_words(self, config: Path, *options: str) -> list[str]:
        """The driver's command. config: its kubeconfig."""
        words = (self.bed.commands.nvc, *self.options, "kube", "driver", "--node", NAME)
        return [*words, "--kubeconfig", str(config), *options]

    def slices(self) -> list[Object]:
        """The node's ResourceSlices."""
        found = self.cluster.admin.items("/apis/resource.k8s.io/v1/resourceslices")
        return [one for one in found if one["spec"]["driver"] == DRIVER and one["spec"].get("nodeName") == NAME]

    def devices(self) -> list[str]:
        """Names of the devices in them."""
        return [device["name"] for one in self.slices() for device in one["spec"]["devices"]]

    def run(self, name: str, words: Sequence[str], ready: daemons.Ready) -> None:
        """Start a program, again where it was stopped. Raises daemons.NotReady."""
        self.daemons[name] = Daemon(name, words, self.env, self.place / f"{name}.log")
        self._ready[name] = ready
        self.daemons[name].start(ready, seconds=60.0)

    def revive(self, *names: str) -> None:
        """Start again what has ended of these, as systemd does: no start waits for another daemon.

        kubelet ends by itself when containerd does not answer at its start, and the driver waits for kubelet.
        """
        for name in names:
            if self.daemons[name].has_ended():
                self.daemons[name].launch()

    def answer(self, *names: str) -> bool:
        """Whether all of these run and answer."""
        return not any(self.daemons[name].has_ended() for name in names) and all(self._ready[name]() for name in names)

    def reboot(self) -> None:
        """End everything at once and start it again with an empty /run, as a machine does."""
        for daemon in self.daemons.values():
            if daemon.process is not None:
                daemon.process.kill()
                daemon.process.wait()
        shims = [Path("/proc", line.split()[0]) for line in leftovers.processes(self.bed.token)]
        own = {daemon.process.pid for daemon in self.cluster.daemons.values() if daemon.process is not None}
        for process in shims:
            if int(process.name) not in own:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
        for directory in ("nvc", "containerd", "netns"):
            subprocess.run(["umount", "-lRq", *Path("/run", directory).glob("*/*/*/rootfs")], check=False)
            subprocess.run(["rm", "-rf", "--one-file-system", f"/run/{directory}"], check=False)
        self.start_containerd()
        self.start_agent()
        self.start_kubelet()
        self.start_driver()

    def stop(self, *names: str) -> None:
        """End these programs; without names, all of them in the other order."""
        for name in names or tuple(reversed(self.daemons)):
            self.daemons[name].stop()

    def log(self, name: str, lines: int = 30) -> str:
        """The end of a program's log."""
        text = (self.place / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def _add_extra(library: Path) -> None:
    """What `nvc-py kube` needs beside the bed's copy of the product: setup.cfg's extra, of this interpreter."""
    shutil.copy(launchers.CHECKOUT / "build/kube/kubelet.binpb", library / "nvc/kube")
    packages = sysconfig.get_path("purelib")
    for name in os.listdir(packages):
        target = library / "deps" / name
        if not target.exists():
            target.symlink_to(f"{packages}/{name}")


def _gates(text: str) -> list[str]:
    return [word.partition("=")[0] for word in text.split(",") if word]


def _prepare_cgroup(parent: Path, child: Path) -> None:
    """Make the child take processes, and give it the controllers that kubelet needs."""
    # cgroup v1's cpusets are empty at first, and then no process can go there. The root of v2 has no such file.
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (parent / name).exists() and (child / name).exists():
            (child / name).write_text((parent / name).read_text())
    # v2 alone: without systemd the groups below the top may have none of its controllers.
    if parent == cgroupview.ROOT:
        for controller in (parent / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # kubelet says which of them it needs
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
