"""Which GPUs are bad, by a kernel's log and files that a test writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.kube.plugin_health import HARMLESS, Health
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
        self.file.write_text("4,1,0,-;NVRM: Xid (PCI:0000:0a:00): 79, before\n")
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
        ("NVRM: Xid (PCI:0000:0b:00): 79, pid=7, GPU fell off.", {"GPU-1": "Xid 79: pid=7, GPU fell off."}),
        ("NVRM: Xid (PCI:00000000:0B:00): 48", {"GPU-1": "Xid 48"}),
        ("NVRM: Xid (PCI:0000:0b:00 GPU-I:05): 94, Contained", {"GPU-1": "Xid 94: Contained"}),
        ("NVRM: Xid (PCI:0000:ff:00): 79, of no GPU here", {}),
        ("NVRM: Xid (PCI:0001:0b:00): 79, of another domain", {}),
        ("NVRM: Xid (PCI:zzzz:0b:00): 79", {}),
        ("usb 1-1: Xid (PCI:0000:0b:00): 79", {}),
        *((f"NVRM: Xid (PCI:0000:0b:00): {number}, a program's", {}) for number in HARMLESS),
    ],
)  # fmt: skip
def test_an_xid(log: Log, health: Health, line: str, expected: dict[str, str]) -> None:
    log.say(line)
    assert expected == health.look()
    # And it stays bad: the log says it once.
    assert expected == health.look()


def test_the_first_xid_counts_and_others_are_of_others(log: Log, health: Health) -> None:
    for line in ("(PCI:0000:0a:00): 62, a", "(PCI:0000:0a:00): 79, b", "(PCI:0000:0c:00): 79, " + "c" * 999):
        log.say(f"NVRM: Xid {line}")
    assert {"GPU-0": "Xid 62: a", "GPU-2": f"Xid 79: {'c' * 120}"} == health.look()


def test_a_gpu_whose_files_go_is_bad_until_they_are_back(log: Log, health: Health) -> None:
    (log.root / "dev/nvidia1").unlink()
    (path,) = health.look().items()
    assert ("GPU-1", True) == (path[0], path[1].endswith("/dev/nvidia1 is gone"))
    (log.root / "dev/nvidia1").touch()
    (log.root / "proc/driver/nvidia/gpus/0").rmdir()
    assert {"GPU-0"} == set(health.look())


def test_a_log_that_cannot_be_read_is_told(log: Log) -> None:
    log.file.unlink()
    with Health(log.host, GPUS) as health:
        assert "Xids are not seen: No such file or directory" in health.problem
        (log.root / "dev/nvidia0").unlink()
        assert {"GPU-0"} == set(health.look())


def test_a_log_without_end_does_not_hold_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    log.file.unlink()
    log.file.symlink_to("/dev/zero")
    with Health(log.host, GPUS) as health:
        assert {} == health.look()
