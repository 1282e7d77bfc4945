"""What a failed test left is removed: the tests after it would fail for it, and the machine would keep it."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from tests.support import cgroupview, leftovers
from tests.support.isolation import in_namespaces

pytestmark = pytest.mark.root


def removed(place: str, token: str) -> tuple[set[str], list[str]]:
    """Kinds of what there was, and what there is afterwards."""
    mounted = Path(place, token)
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", token, mounted], check=True)
    ours = subprocess.Popen(["sleep", "300"], env={leftovers.VARIABLE: token, "PATH": os.environ["PATH"]})
    other = subprocess.Popen(["sleep", "300"])
    version = 1 if (cgroupview.ROOT / "devices").is_dir() else 2
    cgroup = cgroupview.ROOT / ("freezer" if version == 1 else "") / token / "below"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text(str(other.pid))
    if version == 1:
        (cgroup / "freezer.state").write_text("FROZEN")
    before = {line.split(":")[0] for line in leftovers.everything(token, seconds=0)}
    leftovers.remove(token)
    left = leftovers.everything(token, seconds=5)
    for process in (ours, other):
        process.kill()
    return before, left


def test_mounts_cgroups_and_processes_of_a_token_go(tmp_path: Path) -> None:
    token = f"nvct{secrets.token_hex(4)}"
    assert in_namespaces(removed, str(tmp_path), token) == ({"mount", "cgroup", "process"}, [])
