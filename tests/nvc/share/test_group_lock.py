"""A group's entries have one lock, which comes before that of the store: writers of all, and of one, of them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError
from nvc.share import change, store
from nvc.share import entry as entry_module
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.policy import Policy
from nvc.share.spec import parse_gpu
from nvc.share.store import StoredShare, start_time
from tests.support.inventories import gpu

GIB = 1 << 30
UUID = "GPU-b8058b66-3950-5eb2-94c2-df90166ee487"
KNOWN = gpu(0, "0000:01:00.0", UUID).replace(memory=80 * GIB)


@pytest.fixture
def shares(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def add(directory: str, key: str, memory: int, *, group: str = "g", when: int = 100) -> None:
    record = StoredShare(key, key, os.getpid(), start_time(os.getpid()), group=group, when=when)
    found = Limits((ResolvedGpu(UUID, 0, memory * GIB, most=40 * GIB, request=memory * GIB),), driver="580.105.08")
    store.create(record, found, b"", directory=directory)


def requests(directory: str, *keys: str) -> list[int]:
    found = []
    for key in keys:
        with store.find(key, directory) as entry:
            found.append(entry.limits().gpus[0].request // GIB)
    return found


def put(directory: str, key: str, spec: str) -> None:
    with store.find(key, directory) as entry, change.Hold(entry) as held:
        change.apply(held, Policy(), parse_gpu(spec), "", lambda: (KNOWN,), force=True)


@pytest.mark.parametrize("configured", ["a", "b"])
def test_a_change_of_all_and_a_second_step_of_ones_start_do_not_wait_for_each_other(
    shares: str, monkeypatch: pytest.MonkeyPatch, configured: str
) -> None:
    """Each had an entry of the group, and wanted the store, or the other entry: both failed after ten seconds."""
    monkeypatch.setattr(entry_module, "_LOCK_TIMEOUT_S", 5.0)
    for key in ("a", "b"):
        add(shares, key, 8)
    failed: list[ContainerError] = []

    def set_all() -> None:
        try:
            put(shares, "a", "mem=10Gi..40Gi")
        except ContainerError as error:
            failed.append(error)

    setting = threading.Thread(target=set_all)
    with store.find(configured, shares) as entry:  # as nvc.container.share_files does
        entry.lock()
        old = entry.limits()
        setting.start()
        time.sleep(0.3)
        with store.Locked(shares):
            entry.change(old.replace(gpus=(old.gpus[0].replace(memory=7 * GIB, request=7 * GIB),)))
    setting.join()
    assert not failed
    assert requests(shares, "a", "b") == [10, 10]


def test_other_groups_and_containers_are_not_waited_for(shares: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "_LOCK_TIMEOUT_S", 0.05)
    for key, group in (("a", "g"), ("b", "g"), ("c", "h"), ("d", "")):
        add(shares, key, 8, group=group)
    with store.find("a", shares) as entry, change.Hold(entry):
        put(shares, "c", "mem=9Gi..40Gi")
        put(shares, "d", "mem=9Gi..40Gi")
        with pytest.raises(ContainerError, match="group g is locked"):
            put(shares, "b", "mem=9Gi..40Gi")
    put(shares, "b", "mem=9Gi..40Gi")
    assert requests(shares, "a", "b", "c", "d") == [9, 9, 9, 9]


def test_the_lock_is_let_go_where_the_entry_stays_open(shares: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that admits a container of a group has its entry open until the monitor answers."""
    monkeypatch.setattr(entry_module, "_LOCK_TIMEOUT_S", 0.05)
    add(shares, "a", 8)
    with store.find("a", shares) as entry:
        with change.Hold(entry):
            pass
        put(shares, "a", "mem=9Gi..40Gi")


def test_what_a_group_has_is_not_read_from_one_that_starts(shares: str) -> None:
    """It has what it asked for until the agent gives it what the others have; a cap took 30 GiB back to 8."""
    add(shares, "z", 30, when=100)
    add(shares, "a", 8, when=200)
    put(shares, "z", "cap=50%")
    assert requests(shares, "z", "a") == [30, 30]


def test_the_lock_file_is_no_entry(shares: str) -> None:
    add(shares, "a", 8)
    put(shares, "a", "mem=9Gi..40Gi")
    assert ".groups" in os.listdir(shares)
    store.clean(shares)
    found, warnings = store.entries(shares)
    assert ([one.record.key for one in found], warnings) == (["a"], [])
    for one in found:
        one.close()
