"""Which GPUs are bad, by a kernel's log and files that a test writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.kube.plugin_health import Health
from nvc.model import Host
from tests.support import inventories

GPUS = tuple(
    inventories.gpu(n, f"00000000:{n + 10:02x}:00.0", f"GPU-{n}").replace(proc_path=f"/proc/driver/nvidia/gpus/{n}")
    for n in range(3)
)


class Log:
    """A machine's kernel log and GPUs' files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir()
        self.file = root / "dev/kmsg"
        self.file.touch()
        for gpu in GPUS[:2]:
            (root / "dev" / gpu.node.path.rpartition("/")[2]).touch()
            (root / gpu.proc_path[1:]).mkdir(parents=True)
        self.host = Host(root=str(root), system=str(root))

    def say(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(f"4,2,0,-;{text}\n")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.fixture
def health(log: Log) -> Iterator[Health]:
    with Health(log.host, GPUS) as made:
        yield made


def test_all_is_well(health: Health) -> None:
    assert ({}, "") == (health.look(), health.problem)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (PCI:0000:0b:00): 79, pid=7, GPU fell off.", {"GPU-1": "xid-79"}),
        ("NVRM: Xid (PCI:0000:0B:00): 48", {"GPU-1": "xid-48"}),
        ("NVRM: Xid (PCI:0000:0b:00 GPU-I:05): 94, Contained", {"GPU-1": "xid-94"}),
        ("NVRM: Xid (PCI:0000:ff:00): 79, of no GPU here", {}),
        ("NVRM: Xid (PCI:0001:0b:00): 79, of another domain", {}),
        ("usb 1-1: Xid (PCI:0000:0b:00): 79", {}),
        # Words of a program that the kernel quotes: an unprivileged mount is enough.
        ("overlayfs: unrecognized mount option NVRM: Xid (PCI:0000:0b:00): 79", {}),
        ("NVRM: Xid (PCI:0000:0b:00): 31, a program's", {}),
    ],
)
def test_an_xid(log: Log, health: Health, line: str, expected: dict[str, str]) -> None:
    log.say(line)
    assert expected == health.look()
    # And it stays bad: the log says it once.
    assert expected == health.look()


def test_an_xid_before_the_plugins_start_counts(log: Log) -> None:
    log.say("NVRM: Xid (PCI:0000:0a:00): 79, before")
    with Health(log.host, GPUS) as health:
        assert {"GPU-0": "xid-79"} == health.look()


def test_a_gpu_whose_files_go_is_bad_until_they_are_back(log: Log, health: Health) -> None:
    (log.root / "dev/nvidia1").unlink()
    assert {"GPU-1": "gone"} == health.look()
    (log.root / "dev/nvidia1").touch()
    (log.root / "proc/driver/nvidia/gpus/0").rmdir()
    assert {"GPU-0": "gone"} == health.look()


def test_a_log_that_cannot_be_read_is_told(log: Log) -> None:
    log.file.unlink()
    with Health(log.host, GPUS) as health:
        assert "errors of GPUs (Xids) are not seen" in health.problem
        (log.root / "dev/nvidia0").unlink()
        assert {"GPU-0": "gone"} == health.look()
