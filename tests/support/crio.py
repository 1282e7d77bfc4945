"""CRI-O in a userland, with state, sockets and configuration below one directory, and its client.

The programs are those that tools/crio built (NVC_CRIO); conmon, runc, crun and Podman, which imports the image, are the
userland's.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import cgroupview, cri, daemons, leftovers
from tests.support.containerd import IMAGE
from tests.support.runtimes import Result, execute

#: Read once: tests see no NVC_ variable.
_PLACE = os.environ.get("NVC_CRIO", "")
#: crio.conf(5): nothing of the machine's, no network, cgroups without systemd.
_CONFIG = """\
[crio]
root = "{place}/root"
runroot = "{place}/run"
storage_driver = "vfs"
log_dir = "{place}/pods"
version_file = "{place}/version"
clean_shutdown_file = "{place}/clean"
[crio.api]
listen = "{place}/c.sock"
[crio.runtime]
conmon_cgroup = "pod"
cgroup_manager = "cgroupfs"
default_runtime = "runc"
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "MKNOD", "SETGID", "SETUID"]
apparmor_profile = "unconfined"
irqbalance_config_file = ""
cdi_spec_dirs = ["{specs}"]
hooks_dir = ["{place}/hooks.d"]
container_exits_dir = "{place}/exits"
container_attach_socket_dir = "{place}/attach"
namespaces_dir = "{place}/ns"
pinns_path = "{programs}/pinns"
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{place}/runc"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{image}"
signature_policy = "{place}/policy.json"
signature_policy_dir = "{place}/policies"
[crio.network]
network_dir = "{place}/cni/conf"
plugin_dirs = ["{place}/cni/bin"]
[crio.nri]
enable_nri = false
"""


def programs() -> Path:
    """Where crio and pinns are; skips the test where there are none (NVC_MUST_RUN=crio: fails)."""
    if _PLACE and Path(_PLACE, "crio").exists():
        return Path(_PLACE)
    why = "no CRI-O: make it with tools/crio DIR, and name DIR in NVC_CRIO"
    (pytest.fail if "crio" in os.environ.get("NVC_MUST_RUN", "").split(",") else pytest.skip)(why)
    raise AssertionError


@dataclass
class Crio:
    """CRI-O, and its image store by Podman. env: what its unit has. specs: the directory of CDI specifications."""

    token: str
    place: Path
    env: Mapping[str, str]
    wrap: Sequence[str]
    specs: Path
    shares: bool = False
    daemon: daemons.Daemon | None = field(default=None, init=False)

    @property
    def config(self) -> Path:
        return self.place / "crio.conf"

    @property
    def drop_ins(self) -> Path:
        return self.place / "crio.conf.d"

    def write_config(self) -> None:
        for name in ("hooks.d", "crio.conf.d", "policies"):
            (self.place / name).mkdir()
        values = {"place": self.place, "specs": self.specs, "programs": programs(), "image": IMAGE}
        self.config.write_text(_CONFIG.format(runc="/usr/sbin/runc", conmon="/usr/bin/conmon", **values))
        (self.place / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def start(self) -> None:
        """Start it with the files that are there. Raises daemons.NotReady."""
        command = [str(programs() / "crio"), "--config", str(self.config), "--config-dir", str(self.drop_ins)]
        command = daemons.own_run([*self.wrap, *command], shares=self.shares)
        self.daemon = daemons.Daemon("crio", command, self._environment(), self.place / "crio.log")
        self.daemon.start(lambda: (self.place / "c.sock").exists())

    def call(self, *arguments: str) -> Result:
        """The crio command with its configuration."""
        words = [str(programs() / "crio"), "--config", str(self.config), "--config-dir", str(self.drop_ins)]
        return execute([*self.wrap, *words, *arguments], env=self._environment())

    def import_image(self, rootfs: Path) -> None:
        """The image of pods and containers: without a command of its own it sleeps. Raises CalledProcessError."""
        store = [f"--root={self.place}/root", f"--runroot={self.place}/run", "--storage-driver=vfs"]
        changes = ["ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"ENV {leftovers.VARIABLE}={self.token}"]
        changes.append('ENTRYPOINT ["/bin/sleep", "100000"]')
        words = ["podman", *store, "import", "-q", *(word for one in changes for word in ("-c", one)), "-", IMAGE]
        with subprocess.Popen(["tar", "-C", str(rootfs), "-c", "."], stdout=subprocess.PIPE) as tar:
            command = [*self.wrap, *words]
            subprocess.run(
                command, stdin=tar.stdout, capture_output=True, check=True, env=self._environment(), timeout=60
            )

    def client(self) -> cri.Client:
        """kubelet's side; its pods' cgroup has the token as its name."""
        logs = self.place / "logs"
        logs.mkdir()
        return cri.Client(self.place / "c.sock", f"/{self.token}", logs)

    def stop(self) -> None:
        """End it with its containers, and remove its cgroup."""
        if self.daemon is not None:
            self.daemon.stop()
        leftovers.end_processes(self.token)
        cgroupview.remove_when_empty(self.token)

    def _environment(self) -> dict[str, str]:
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": str(self.place), leftovers.VARIABLE: self.token, **self.env}
