"""A container's process whose descriptors in flight (unix(7), ETOOMANYREFS) are those of every process of its uid."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.attacks import SOURCES
from tests.support.tenants import Tenants, build_static, guarded, prepare

pytestmark = pytest.mark.root
GIB = 1 << 30


def may_pass_descriptors() -> bool:
    """Whether a monitor can have CAP_SYS_RESOURCE (linux/capability.h: 24) here."""
    text = Path("/proc/self/status").read_text()
    return bool(int(text.partition("CapBnd:")[2].split()[0], 16) & 1 << 24)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = prepare(tmp_path_factory.mktemp("machine"))
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    build_static(Path(__file__).parents[2] / "tests/system/programs/inflight.c", directory / "inflight")
    return directory


@pytest.mark.skipif(not may_pass_descriptors(), reason="no CAP_SYS_RESOURCE")
def test_descriptors_in_flight_of_one_tenant_do_not_stop_another(place: Path) -> None:
    def attacked(tenants: Tenants) -> None:
        tenants.add(1, memory=GIB)
        tenants.add(2, memory=GIB)
        assert tenants.run(place / "attack", "churn", "10", tenant=2).startswith("bad=0\n")
        # Its filter is there, and its first call comes later.
        script = f"read go; exec {place}/attack churn 10"
        waiting = [tenants.start("/bin/sh", "-c", script, tenant=2) for _ in range(2)]
        time.sleep(0.5)
        hostile = tenants.start(place / "inflight")
        assert hostile.stdout
        assert "Too many references" in hostile.stdout.readline()
        said = []
        for process in waiting:
            try:
                said.append(process.communicate("\n", timeout=5)[0][:20])
            except subprocess.TimeoutExpired:
                said.append("hangs")
            process.kill()
            hostile.kill()
            hostile.wait()
        assert [one.startswith("bad=0\n") for one in said] == [True, True], said

    guarded(place, attacked)
