"""containerd and ctr, with state, sockets and configuration below one directory."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from tests.support import cgroupview, daemons, leftovers
from tests.support.runtimes import Result, execute, find

IMAGE = "localhost/probe:1"
_CONFIG = """\
version = 2
root = "{place}/root"
state = "{place}/state"
disabled_plugins = [{disabled}]

[grpc]
  address = "{place}/c.sock"

[ttrpc]
  address = "{place}/c.sock.ttrpc"
"""
#: A logger as containerd starts one (``binary://`` of its runtime v2): 3 and 4 are a container's output and errors, 5
#: closed says that it is ready. The shim ends it with TERM, when both may still have something to read.
_LOGGER = """\
#!/bin/sh
export {variable}={token}
trap '' TERM
cat <&3 >"{place}/$CONTAINER_ID.out" 5>&- &
cat <&4 >"{place}/$CONTAINER_ID.err" 5>&- &
exec 5>&-
wait
"""
_UNUSED = (
    "io.containerd.internal.v1.restart",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.devmapper",
)


@dataclass
class Containerd:
    """containerd, and ctr as its client.

    The token is containerd's namespace, so cgroups carry it. env: what containerd, and so every runtime, gets. shares:
    whether its containers' shares are the host's, for an agent outside. wrap: what containerd and ctr run under
    (another userland).
    """

    token: str
    place: Path
    env: Mapping[str, str]
    shares: bool = False
    wrap: Sequence[str] = ()
    daemon: daemons.Daemon | None = field(default=None, init=False)

    @property
    def config(self) -> Path:
        return self.place / "config.toml"

    def write_config(self, *, cri: bool = False) -> None:
        disabled = _UNUSED if cri else (*_UNUSED, "io.containerd.grpc.v1.cri")
        text = _CONFIG.format(place=self.place, disabled=", ".join(f'"{name}"' for name in disabled))
        self.config.write_text(text)

    def start(self) -> None:
        """Start containerd with the config.toml that is there. Raises daemons.NotReady."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": path, leftovers.VARIABLE: self.token, **self.env}
        program = "containerd" if self.wrap else find("containerd")
        command = daemons.own_run([*self.wrap, program, "--config", str(self.config)], shares=self.shares)
        self.daemon = daemons.Daemon("containerd", command, environment, self.place / "containerd.log")
        self.daemon.start(lambda: self.call("version").code == 0)

    def call(self, *arguments: str, path: str = "", env: Mapping[str, str] | None = None) -> Result:
        """ctr. path: a directory at the head of its PATH."""
        usual = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {"PATH": f"{path}:{usual}" if path else usual, leftovers.VARIABLE: self.token, **(env or {})}
        return execute([*self.wrap, "ctr", "-a", f"{self.place}/c.sock", "-n", self.token, *arguments], env=environment)

    def import_image(self, rootfs: Path) -> None:
        """An image of one layer. Raises RuntimeError."""
        archive = self.place / "image.tar"
        write_image(rootfs, archive)
        done = self.call("images", "import", str(archive))
        archive.unlink()
        if done.code != 0:
            raise RuntimeError(f"ctr cannot import the image: {done.text}")

    def run(
        self, options: Sequence[str], name: str, command: Sequence[str], *, path: str = "", env: Sequence[str] = ()
    ) -> Result:
        """``ctr run --rm``; the result's texts are ctr's and the container's.

        The shim hands the output to a logger. ctr itself loses it on a loaded machine: it gives up to open a FIFO when
        the container has ended.
        """
        words = [word for one in (f"{leftovers.VARIABLE}={self.token}", *env) for word in ("--env", one)]
        log = f"--log-uri=binary://{self._logger()}"
        try:
            ran = self.call("run", "--rm", log, *options, *words, IMAGE, name, *command, path=path)
        finally:
            self.call("task", "kill", "--signal=KILL", name)
            self.call("container", "rm", name)
        return replace(ran, out=ran.out + self._logged(f"{name}.out"), err=ran.err + self._logged(f"{name}.err"))

    def _logger(self) -> Path:
        logger = self.place / "logger"
        if not logger.exists():
            logger.write_text(_LOGGER.format(variable=leftovers.VARIABLE, token=self.token, place=self.place))
            logger.chmod(0o755)
        return logger

    def _logged(self, name: str) -> str:
        try:
            return (self.place / name).read_text(errors="replace")
        except FileNotFoundError:  # no container was made
            return ""

    def stop(self) -> None:
        """End containerd, its shims and containers, and remove its cgroup."""
        if self.daemon is not None:
            self.daemon.stop()
        leftovers.end_processes(self.token)
        cgroupview.remove(self.token)


def write_image(rootfs: Path, archive: Path) -> None:
    """An OCI image layout of one layer (image-spec 1.0), in a tar file, with the name IMAGE."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(rootfs, arcname=".")
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, object]:
        digest = sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    first = blob(layer.read_bytes(), "layer.v1.tar")
    layer.unlink()
    image = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [first["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(image).encode(), "config.v1+json"),
        "layers": [first],
    }
    described = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    described["annotations"] = {"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": IMAGE}
    directory = archive.with_suffix(".layout")
    (directory / "blobs/sha256").mkdir(parents=True)
    for digest, content in blobs.items():
        (directory / "blobs/sha256" / digest).write_bytes(content)
    (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    with tarfile.open(archive, "w") as tar:
        for path in sorted(directory.iterdir()):
            tar.add(path, arcname=path.name)
