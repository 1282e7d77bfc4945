"""What code that an attacker executes in a supervisor can do: nothing that its container cannot.

``hostile-supervisor`` is nvc-supervisor with native/test/hostile_supervisor.c linked in place of the guard's begin.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.guard.supervisors import USERS, Supervisors
from nvc.share import limits
from nvc.share.limits import NODE_CONTROL, NODE_GPU, Limits, LimitsNode
from nvc.share.model import ResolvedGpu
from nvc.share.store import start_time
from tests.support import leftovers
from tests.support.firsts import FirstProcess
from tests.support.native import build

pytestmark = pytest.mark.root

AMOUNTS = ("memory", "processes")
GPU = ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30)


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    made = tmp_path / "dev"
    made.mkdir()
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        (made / name).touch()
    return made


def share(devices: Path) -> bytes:
    """Of the first GPU of two."""
    nodes = []
    for kind, name in ((NODE_CONTROL, "nvidiactl"), (NODE_GPU, "nvidia0")):
        status = (devices / name).stat()
        nodes.append(LimitsNode(kind, 0, status.st_dev, status.st_ino))
    return limits.encode(Limits((GPU,), tuple(nodes), "580.105.08", "test"))


def container() -> subprocess.Popen[bytes]:
    """Processes in a pid and a mount namespace of their own."""
    words = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "sleep", "300"]
    return subprocess.Popen(words, start_new_session=True)


def first_of(unshare: subprocess.Popen[bytes]) -> int:
    place = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
    assert leftovers.until(lambda: len(place.read_text().split()) == 1, seconds=20)
    return int(place.read_text())


@pytest.fixture
def containers() -> Iterator[tuple[int, int]]:
    with container() as one, container() as other:
        yield first_of(one), first_of(other)
        one.kill()
        other.kill()


def attempts(said: str) -> list[tuple[str, int, int]]:
    found = [json.loads(line) for line in said.splitlines() if '"attempt"' in line]
    return [(one["attempt"], one["target"], one["errno"]) for one in found]


def amounts(found: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """The attempts but for those that take as much as there is: at most 192 MiB, and 40 processes (confine.c)."""
    taken = {name: (count, number) for name, count, number in found if name in AMOUNTS}
    assert {name: number for name, (_, number) in taken.items()} == {"memory": errno.ENOMEM, "processes": errno.EAGAIN}
    assert 100 < taken["memory"][0] <= 192
    assert 0 < taken["processes"][0] < 40
    return [one for one in found if one[0] not in AMOUNTS]


def test_code_in_a_supervisor_reaches_its_container_and_nothing_else(
    devices: Path,
    containers: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    build("nvc-monitor", "nvc-supervisor", "hostile-supervisor")
    own, other = containers
    with Supervisors(str(devices)) as made:
        made.add(2, share(devices), 1, first=(other, start_time(other)))
        strangers = (1, os.getpid(), other, *made.pids(2))
        pids = (*strangers, own)
        monkeypatch.setenv("NVC_TEST_TARGETS", ",".join(f"{pid}:{start_time(pid)}" for pid in pids))
        monkeypatch.setenv("NVC_TEST_REPORT", str(tmp_path / "report"))
        made._supervisor = made._supervisor.replace("nvc-supervisor", "hostile-supervisor")
        made.add(1, share(devices), 1, first=(own, start_time(own)))
        found = attempts((tmp_path / "report").read_text())
        found = amounts(found)
        allowed = {name for name, target, number in found if number == 0 and target not in (own, 1, 17, 33)}
        assert allowed == {"done"}, "nothing of the host and of no stranger"
        assert len(found) > 100
        numbers = {number for name, target, number in found if target != own and not name.startswith("privsep")}
        assert numbers == {0, errno.EPERM, errno.ENOSYS}, "0: done"
        devices_given = {target: number for name, target, number in found if name == "privsep-device"}
        assert devices_given == {1: 0, 17: errno.ENODEV, 33: errno.ENODEV, -1: errno.ENODEV}, "its GPU alone"
        about_own = {name: number for name, target, number in found if target == own}
        assert about_own == {
            "privsep-process": 0,
            "privsep-file": errno.ENOTTY,
            "privsep-files": 0,
            "privsep-maps": 0,
            "privsep-space": 0,
            "privsep-syscall": 0,
            "privsep-ending": 0,
            "privsep-kill": 0,
        }
        about_strangers = {
            number
            for name, target, number in found
            if target in strangers and name.startswith("privsep-") and "device" not in name
        }
        assert about_strangers == {errno.EPERM}
        assert all(os.path.exists(f"/proc/{pid}") for pid in strangers)


def test_code_in_the_prober_reaches_nothing(
    devices: Path, containers: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither the host nor a container; counters of tenants can be read alone, and the page cannot grow."""
    build("nvc-monitor", "nvc-supervisor", "hostile-prober")
    with Supervisors(str(devices)) as made:
        made.add(1, share(devices), 1, first=(containers[0], start_time(containers[0])))
        pids = (1, os.getpid(), *containers, *made.pids(1))
        counters, _ = made.files(1)
        monkeypatch.setenv("NVC_TEST_TARGETS", ",".join(map(str, pids)))
        monkeypatch.setenv("NVC_TEST_COUNTERS", str(counters))
        monkeypatch.setenv("NVC_TEST_PAGE", str(made._contention))
        monkeypatch.setenv("NVC_TEST_REPORT", str(tmp_path / "report"))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            passed = theirs.fileno(), made._contention, counters
            words = [build("hostile-prober") / "hostile-prober", *map(str, passed[:2]), str(devices), str(USERS), ""]
            done = subprocess.run(words, pass_fds=passed, timeout=30, check=False)
        found = attempts((tmp_path / "report").read_text())
        assert done.returncode == 3, "there is no driver at these nodes"
        found = amounts(found)
        assert {name for name, _, number in found if number == 0} == {"done"}
        assert len(found) > 100
        others = {name: number for name, _, number in found if name in ("write-counters", "grow-page")}
        assert others == {"write-counters": errno.EBADF, "grow-page": errno.EFBIG}
        numbers = {number for name, _, number in found if name not in others}
        assert numbers == {0, errno.EPERM, errno.ENOSYS}
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_supervisor_has_no_rights(devices: Path) -> None:
    build("nvc-monitor", "nvc-supervisor")
    with FirstProcess() as first, Supervisors(str(devices)) as made:
        made.add(7, share(devices), 1, first=first.key)
        monitor, supervisor = made.pids(7)
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{supervisor}/status").read_text().splitlines()
            if ":\t" in line
        )
        user = str(USERS + 7)
        assert status["Uid"].split() == status["Gid"].split() == [user] * 4
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        assert (status["Seccomp"], status["NoNewPrivs"], status["Groups"].strip()) == ("2", "1", "")
        assert os.readlink(f"/proc/{supervisor}/root") == f"/proc/{supervisor}/fdinfo"
        own = Path(f"/proc/{monitor}/status").read_text()
        capabilities = int(next(line for line in own.splitlines() if line.startswith("CapPrm")).split()[1], 16)
        scores = {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (monitor, supervisor)}
        lowers = os.geteuid() == 0 and capabilities & 1 << 24  # CAP_SYS_RESOURCE
        assert scores == {"-999\n" if lowers else Path("/proc/self/oom_score_adj").read_text()}
        # CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_RESOURCE, CAP_PERFMON of linux/capability.h.
        assert capabilities == capabilities & (1 << 2 | 1 << 5 | 1 << 19 | 1 << 24 | 1 << 38)
