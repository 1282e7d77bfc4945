"""``nvc-py kube device-plugin`` as a process: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.kube.plugin_config import GPU
from nvc.sim.create import create
from tests.nvc.kube.test_plugin_config import SAMPLE
from tests.support.kubelet import Kubelet
from tests.support.native import build

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    build()
    return create(str(tmp_path_factory.mktemp("command") / "h200"), "h200").root


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nvc-kubelet-") as made:
        yield Path(made)


def words(simulated: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "nvc", f"--sim={simulated}", "kube", "device-plugin", *more]


def call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_says_what_pods_would_get(simulated: str, tmp_path: Path) -> None:
    (tmp_path / "sample.yaml").write_bytes(SAMPLE)
    result = call(*words(simulated, f"--config={tmp_path}/sample.yaml", "--dry-run"))
    assert (0, "") == (result.returncode, result.stderr)
    assert ["nvidia.com/gpu: 4", "0     NVIDIA H200                 4 x mem=35942Mi,weight=10,guard=require"] == [
        line.strip() for line in result.stdout.splitlines()
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--config=/none/there"], "input error: /none/there: no such file or directory"),
        (["--config=/dev/zero"], "input error: /dev/zero: more than 1 MiB"),
        (["--config=/etc/passwd"], "input error: /etc/passwd: "),
        (["--config=x", "--replicas=2"], "--config says what is shared"),
        (["--replicas=0"], "--replicas 0 is not a number from 1 to 1000"),
        (["--replicas=2", "--resource=a b"], "--resource: 'a b' cannot be the name"),
        (["--replicas=1000000"], "is not a number"),
        (["--kubelet=/none", "--cdi-dir=/proc/none"], "could not be written"),
    ],
)
def test_what_it_refuses(simulated: str, options: list[str], message: str) -> None:
    result = call(*words(simulated, *options))
    assert 1 == result.returncode
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_it_serves_until_sigterm(simulated: str, directory: Path) -> None:
    options = [f"--kubelet={directory}", f"--cdi-dir={directory}/cdi", "--replicas=4"]
    with Kubelet(directory) as kubelet:
        process = subprocess.Popen(words(simulated, *options), stderr=subprocess.PIPE, text=True)
        try:
            devices = kubelet.has(GPU)
            assert 4 == len(devices)
            (reply,) = kubelet.allocate(GPU, [next(iter(devices))])
            assert [device.name.rpartition("-")[2] for device in reply.cdi_devices] == ["1of4"]
            assert os.listdir(directory / "cdi") == ["device-plugin-replica.json"]
        finally:
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        assert 0 == process.returncode
        assert time.monotonic() - began < 10
        events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert [("registered", GPU, 4)] == [
            (one["event"], one["resource"], one["devices"]) for one in events if one["event"] == "registered"
        ]
        assert "Traceback" not in said
        # A container that starts again has its CDI device while no plugin runs.
        assert ["device-plugin-replica.json"] == os.listdir(directory / "cdi")
