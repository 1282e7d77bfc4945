"""Entries of the store without a known process: they go when no container can have them, and not before."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from nvc.share import store, unowned
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from tests.support.isolation import in_namespaces

LIMITS = Limits((ResolvedGpu("GPU-b8058b66-3950-5eb2-94c2-df90166ee487", -1, 1 << 30),), driver="580.1")
#: Of the tests: the name must be in no mount of this machine.
NAMES = ("unowned-damaged", "unowned-pid-0", "unowned-good")


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A store with a damaged entry, one without a pid and one of this process, all of them old."""
    place = str(tmp_path / "share")
    for name in NAMES:
        pid = os.getpid() if name == NAMES[2] else 0
        store.create(StoredShare(name, name, pid, store.start_time(pid) if pid else 0), LIMITS, b"", directory=place)
    Path(place, NAMES[0], "container.json").write_text("{")
    for name in NAMES:
        os.utime(f"{place}/{name}", (0, 0))
    return place


def cleaned(directory: str, *keep: str) -> list[str]:
    """In a pid namespace, where every process can be looked at: those of the machine are not all ours."""
    found: list[str] = in_namespaces(unowned.clean, lambda: keep, directory, pid=True)
    return found


def left(directory: str) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.mark.root
def test_damaged_entries_and_those_without_a_process_go(directory: str) -> None:
    # They stayed for ever: each was a warning of every `share ls`.
    assert store.clean(directory) == []
    assert cleaned(directory) == sorted(NAMES[:2])
    assert left(directory) == [NAMES[2]]
    assert store.entries(directory)[1] == []


@pytest.mark.root
def test_those_of_guarded_containers_stay(directory: str) -> None:
    assert cleaned(directory, *NAMES) == []
    assert left(directory) == sorted(NAMES)


def test_those_that_are_being_made_stay(directory: str) -> None:
    for name in NAMES:
        os.utime(f"{directory}/{name}", (time.time(), time.time()))
    assert unowned.clean(lambda: (), directory) == []


def with_mount(directory: str, target: str) -> tuple[list[str], list[str]]:
    script = f"mount --bind {directory}/{NAMES[1]}/region {target} && echo ready && exec sleep 60"
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as container:
        assert container.stdout is not None and container.stdout.readline() == b"ready\n"
        while_there = unowned.clean(lambda: (), directory)
        container.kill()
    return while_there, unowned.clean(lambda: (), directory)


@pytest.mark.root
def test_those_with_a_mount_in_any_namespace_stay(directory: str, tmp_path: Path) -> None:
    """A container that the preloaded library holds, in a mount namespace of its own."""
    target = tmp_path / "region-of-the-container"
    target.touch()
    assert in_namespaces(with_mount, directory, str(target), pid=True) == ([NAMES[0]], [NAMES[1]])


def test_where_mounts_cannot_be_read_all_stay(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(keys: set[str]) -> set[str]:
        raise PermissionError(13, "permission denied")

    monkeypatch.setattr(unowned, "_mounted", refuse)
    with pytest.raises(PermissionError):
        unowned.clean(lambda: (), directory)
    assert left(directory) == sorted(NAMES)


def test_without_a_store_nothing_goes(tmp_path: Path) -> None:
    assert unowned.clean(lambda: (), str(tmp_path / "none")) == []
