"""Docker Engine with data, sockets and configuration of its own below one directory; nothing listens on the network."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import cgroupview, daemons, leftovers
from tests.support.runtimes import Result, execute, find

IMAGE = "probe:1"


@dataclass
class Docker:
    """dockerd and its client.

    programs: directories at the head of dockerd's PATH, where it looks for the hook once, at its start.
    settings: more keys of daemon.json. wrap: what dockerd and the client run under (another userland). shares: whether
    its containers' shares are the host's, for an agent outside.
    """

    token: str
    place: Path
    programs: Sequence[str]
    env: Mapping[str, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrap: Sequence[str] = ()
    shares: bool = False
    daemon: daemons.Daemon | None = field(default=None, init=False)

    @property
    def config(self) -> Path:
        """daemon.json."""
        return self.place / "daemon.json"

    def write_config(self) -> None:
        data = {
            "data-root": str(self.place / "data"),
            "exec-root": str(self.place / "exec"),
            "pidfile": str(self.place / "dockerd.pid"),
            "deprecated-key-path": str(self.place / "key.json"),
            "hosts": [f"unix://{self.place}/dockerd.sock"],
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "cgroup-parent": f"/{self.token}-docker",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            **self.settings,
        }
        self.config.write_text(json.dumps(data, indent=2))

    def start(self) -> None:
        """Start dockerd with the config.json that is there. Raises daemons.NotReady."""
        path = ":".join([*self.programs, os.environ.get("PATH", ""), "/usr/sbin:/usr/bin:/sbin:/bin"])
        command = [*self.wrap, "dockerd", "--config-file", str(self.config)]
        environment = {"PATH": path, leftovers.VARIABLE: self.token, **self.env}
        log = self.place / "dockerd.log"
        self.daemon = daemons.Daemon("dockerd", daemons.own_run(command, shares=self.shares), environment, log)
        self.daemon.start(lambda: self.call("version").code == 0)

    def import_image(self, rootfs: Path, *changes: str, name: str = IMAGE) -> None:
        """An image of one layer from a root file system. changes: instructions of a Dockerfile."""
        words = [word for change in ("ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin", *changes) for word in ("-c", change)]
        with subprocess.Popen(["tar", "-C", str(rootfs), "-c", "."], stdout=subprocess.PIPE) as tar:
            command = [*self._docker(), "import", *words, "-", name]
            subprocess.run(command, stdin=tar.stdout, capture_output=True, check=True, env=self._client(), timeout=60)

    def call(self, *arguments: str) -> Result:
        """The client."""
        return execute([*self._docker(), *arguments], env=self._client())

    def _docker(self) -> list[str]:
        return [*self.wrap, "docker"] if self.wrap else [find("docker")]

    def run(self, options: Sequence[str], command: Sequence[str], *, image: str = IMAGE) -> Result:
        """``docker run --rm`` without a network."""
        token = f"{leftovers.VARIABLE}={self.token}"
        return self.call("run", "--rm", "--network=none", "--env", token, *options, image, *command)

    def stop(self) -> None:
        """End dockerd, its containers and its containerd, and remove its cgroup."""
        if self.daemon is not None:
            self.daemon.stop()
        leftovers.end_processes(self.token)
        cgroupview.remove(f"{self.token}-docker")

    def _client(self) -> dict[str, str]:
        place = {"DOCKER_HOST": f"unix://{self.place}/dockerd.sock", "DOCKER_CONFIG": str(self.place / "client")}
        return {"PATH": f"{os.environ.get('PATH', '')}:/usr/bin:/bin", leftovers.VARIABLE: self.token, **place}
