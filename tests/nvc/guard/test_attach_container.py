"""Which processes are a container's, by their cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.base.errors import InputError
from nvc.guard.attach import of_container
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare

LONG = "4f0c91d2a7b3" + "0123456789abcdef" * 3 + "0123"
GROUPS = {
    1: "0::/init.scope",
    10: "0::/c1",
    11: "0::/c1/inner",
    12: "0::/ac1",
    13: "0::/c10",
    14: f"0::/system.slice/docker-{LONG}.scope",
    15: f"12:devices:/kubepods/burstable/{LONG}\n0::/",
    16: f"0::/docker/00{LONG}",
}


@pytest.fixture
def proc(tmp_path: Path) -> str:
    for pid, text in GROUPS.items():
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "cgroup").write_text(f"{text}\n")
    return str(tmp_path / "proc")


@pytest.mark.root
def test_a_short_name_is_no_part_of_another(proc: str, tmp_path: Path) -> None:
    # "c1" was found in every id that has it somewhere, and strangers' processes were given a timeslice.
    shares, own = str(tmp_path / "share"), os.getpid()
    limits = Limits((ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30),), (), "580.105.08", "c1")
    store.create(StoredShare("c1", "c1", own, store.start_time(own)), limits, b"", directory=shares)
    assert of_container("c1", shares, proc) == (10, 11)


@pytest.mark.root
def test_a_container_is_found_by_its_engines_name(proc: str, tmp_path: Path) -> None:
    shares, own = str(tmp_path / "share"), os.getpid()
    limits = Limits((ResolvedGpu("GPU-11111111-2222-3333-4444-555555555555", 0, 1 << 30),), (), "580.105.08", "c1")
    record = StoredShare("c1", "c1", own, store.start_time(own), name="team/web/server")
    store.create(record, limits, b"", directory=shares)
    assert of_container("server", shares, proc) == of_container("web/server", shares, proc) == (10, 11)
    with pytest.raises(InputError):
        of_container("eb/server", shares, proc)


def test_an_id_is_found_by_its_beginning(proc: str) -> None:
    assert of_container(LONG, "none", proc) == (14, 15)
    assert of_container(LONG[:12], "none", proc) == (14, 15)
    with pytest.raises(InputError, match="no process of a container"):
        of_container(LONG[1:], "none", proc)
