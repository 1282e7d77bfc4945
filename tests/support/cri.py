"""containerd as kubelet sees it: a client of the Container Runtime Interface (CRI), version 1, and the daemon for it.

gRPC comes from grpcio; the messages are written by hand as field numbers, which are those of api.proto in
kubernetes/cri-api, pkg/apis/runtime/v1. The comments name the fields. Only what the tests ask for is here.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.support import cgroupview, leftovers
from tests.support.containerd import IMAGE, Containerd
from tests.support.runtimes import Result, execute

#: A message to send: field number -> number, text, message, or a list of these for a repeated field.
Message = Mapping[int, Any]
#: A message that came: field number -> its values in order; texts and messages are bytes.
Fields = dict[int, list[Any]]
CALL_SECONDS = 30.0
RUN_SECONDS = 60.0
#: NamespaceMode and ContainerState.
_POD, _CONTAINER, _NODE = 0, 1, 2
_EXITED = 2
#: NamespaceOption: network of the node, so no CNI; pid of the container; ipc of the pod.
_NAMESPACES = {1: _NODE, 2: _CONTAINER, 3: _POD}
_CRI = """
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  cdi_spec_dirs = ["{specs}"]
  # Root may not lower oom_score_adj on every machine.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{place}/cni/bin"
    conf_dir = "{place}/cni/conf"
"""


class CriError(Exception):
    """A call that containerd refused; the text has the call, gRPC's code and containerd's words."""


def encode(message: Message) -> bytes:
    """The protobuf wire format: every field as its key (number, wire type) and its value, in the order given."""
    return b"".join(
        _field(number, each)
        for number, value in message.items()
        for each in (value if isinstance(value, list) else [value])
    )


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = encode(value) if isinstance(value, Mapping) else value.encode()
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first; the eighth says that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def decode(data: bytes) -> Fields:
    """The fields of a message. Raises ValueError when it ends too early or has a wire type that CRI does not use."""
    stream = io.BytesIO(data)
    found: Fields = {}
    while stream.tell() < len(data):
        key = _read_varint(stream)
        kind = key & 7
        if kind not in (0, 2):
            raise ValueError(f"wire type {kind} in field {key >> 3}")
        found.setdefault(key >> 3, []).append(
            _read_varint(stream) if kind == 0 else _read(stream, _read_varint(stream))
        )
    return found


def _read_varint(stream: io.BytesIO) -> int:
    value = shift = 0
    while True:
        byte = _read(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value
        shift += 7


def _read(stream: io.BytesIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise ValueError("the message ends within a field")
    return content


def pairs(values: Mapping[str, str]) -> list[Message]:
    """A map<string, string>, or KeyValue messages: both have the key in field 1 and the value in field 2."""
    return [{1: key, 2: value} for key, value in values.items()]


class Client:
    """What kubelet does for a pod of one container. cgroup: the pods' parent. logs: where their output goes."""

    def __init__(self, socket: Path, cgroup: str, logs: Path) -> None:
        import grpc  # only needed with containerd

        self._failure = grpc.RpcError
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._cgroup = cgroup
        self._logs = logs
        self._pods = 0

    def close(self) -> None:
        self._channel.close()

    def call(self, name: str, message: Message) -> Fields:
        """One call of the RuntimeService. Raises CriError."""
        method = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{name}", request_serializer=encode, response_deserializer=decode
        )
        try:
            answer: Fields = method(message, timeout=CALL_SECONDS)
        except self._failure as error:
            raise CriError(f"{name}: {error.code().name}: {error.details()}") from error
        return answer

    def run(
        self,
        command: Sequence[str],
        *,
        handler: str = "",
        env: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        devices: Sequence[str] = (),
    ) -> Result:
        """A pod with one container, from its start to its end; the pod is removed. Raises CriError, TimeoutError.

        handler: a runtime of the configuration, as a RuntimeClass names it. devices: the CDI_devices field.
        """
        start = time.monotonic()
        self._pods += 1
        name = f"pod{self._pods}"
        # PodSandboxConfig: metadata (name, uid, namespace), log_directory, linux (cgroup_parent, security_context).
        pod: Message = {
            1: {1: name, 2: name, 3: "default"},
            3: str(self._logs),
            8: {1: self._cgroup, 2: {1: _NAMESPACES}},
        }
        # ContainerConfig: metadata, image (user_specified_image too), command, envs, annotations, log_path, linux
        # (security_context), CDI_devices.
        container: Message = {
            1: {1: "c"},
            2: {1: IMAGE, 18: IMAGE},
            3: list(command),
            6: pairs(env or {}),
            10: pairs(annotations or {}),
            11: f"{name}.log",
            15: {2: {3: _NAMESPACES}},
            17: [{1: device} for device in devices],
        }
        sandbox = self.call("RunPodSandbox", {1: pod, 2: handler})[1][0].decode()
        try:
            identifier = self.call("CreateContainer", {1: sandbox, 2: container, 3: pod})[1][0].decode()
            self.call("StartContainer", {1: identifier})
            code = self._wait(identifier)
        finally:
            self.call("StopPodSandbox", {1: sandbox})
            self.call("RemovePodSandbox", {1: sandbox})
        out, err = read_log(self._logs / f"{name}.log")
        return Result(code, out, err, time.monotonic() - start)

    def _wait(self, identifier: str) -> int:
        """The exit code of a container, when it has ended. Raises TimeoutError after RUN_SECONDS."""
        end = time.monotonic() + RUN_SECONDS
        while time.monotonic() < end:
            # ContainerStatusResponse.status: state is field 3, exit_code field 7; a zero is not sent.
            status = decode(self.call("ContainerStatus", {1: identifier})[1][0])
            if status.get(3, [0])[0] == _EXITED:
                return int(status.get(7, [0])[0])
            time.sleep(0.05)
        raise TimeoutError(f"container {identifier} still runs")


def read_log(log: Path) -> tuple[str, str]:
    """stdout and stderr in a log of CRI's form: time, stream, F or P (the line goes on in the next entry), text."""
    found = {"stdout": "", "stderr": ""}
    for line in log.read_text(errors="replace").splitlines():
        _, stream, tag, text = line.split(" ", 3)
        found[stream] += text + ("\n" if tag == "F" else "")
    return found["stdout"], found["stderr"]


@dataclass
class CriContainerd(Containerd):
    """containerd with its CRI plugin, and ctr in kubelet's namespace of it.

    specs: the directory of CDI specifications.
    """

    specs: Path = Path("/nonexistent")

    def write_config(self, *, cri: bool = True) -> None:
        super().write_config(cri=cri)
        with self.config.open("a") as config:
            config.write(_CRI.format(image=IMAGE, specs=self.specs, place=self.place))

    def call(self, *arguments: str, path: str = "", env: Mapping[str, str] | None = None) -> Result:
        """ctr."""
        command = [*self.wrap, "ctr", "-a", f"{self.place}/c.sock", "-n", "k8s.io", *arguments]
        return execute(command, env={**self._environment(path), **(env or {})})

    def import_image(self, rootfs: Path) -> None:
        """The image of pods and containers: without a command of its own it sleeps. Raises RuntimeError."""
        archive = self.place / "image.tar"
        write_image(rootfs, archive, [f"{leftovers.VARIABLE}={self.token}"])
        done = self.call("images", "import", str(archive))
        archive.unlink()
        if done.code != 0:
            raise RuntimeError(f"ctr cannot import the image: {done.text}")

    def client(self) -> Client:
        """kubelet's side; its pods' cgroup has the token as its name."""
        logs = self.place / "logs"
        logs.mkdir()
        return Client(self.place / "c.sock", f"/{self.token}", logs)

    def stop(self) -> None:
        super().stop()
        cgroupview.remove_when_empty(self.token)

    def _environment(self, path: str = "") -> dict[str, str]:
        usual = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": f"{path}:{usual}" if path else usual, leftovers.VARIABLE: self.token, **self.env}


def write_image(rootfs: Path, archive: Path, env: Sequence[str], *, name: str = IMAGE) -> None:
    """An image of one layer in the form of ``docker save``: CRI wants an entrypoint in a pod's."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(rootfs, arcname=".")
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *env], "Entrypoint": ["/bin/sleep", "100000"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer.read_bytes()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, data in (("config.json", config), ("manifest.json", manifest)):
            content = json.dumps(data).encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        tar.add(layer, arcname="layer.tar")
    layer.unlink()
