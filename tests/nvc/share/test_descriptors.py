"""A process that can open no more files: what it could not open is not taken for nothing."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nvc.agent.promised import PromisedRequests
from nvc.base.errors import ContainerError
from nvc.share import admission, store, unowned
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare, start_time

LIMITS = Limits((ResolvedGpu("GPU-b8058b66-3950-5eb2-94c2-df90166ee487", -1, 1 << 30),), driver="580.1")


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "share")


def make(directory: str, key: str) -> StoredShare:
    record = StoredShare(key, key, os.getpid(), start_time(os.getpid()))
    store.create(record, LIMITS, b"", directory=directory)
    return record


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """So many more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    free = [os.open("/", os.O_PATH) for _ in range(highest)]  # none below the highest one
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in free:
            os.close(one)


def test_entries_are_counted_with_fewer_descriptors_than_there_are_entries(directory: str) -> None:
    """With 1024, as many hooks have, the requests of all containers beyond the first thousand did not count."""
    for number in range(60):
        make(directory, f"c{number}")
    with few_descriptors(8):
        assert len(admission.others(StoredShare("new"), directory)) == 60
        with pytest.raises(ContainerError, match="too many open files"):
            store.entries(directory)


@pytest.mark.parametrize("count", range(6))
def test_want_of_descriptors_says_nothing_of_an_entry(
    directory: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be opened counted as damaged, and its container as ended: it was passed over, or removed."""
    record = make(directory, "alive")
    monkeypatch.setattr(unowned, "_mounted", lambda keys: set())  # as of a guarded container
    with few_descriptors(count):
        assert record.is_alive()
        with suppress(OSError, ContainerError):
            assert len(admission.others(StoredShare("new"), directory)) == 1
        with suppress(OSError, ContainerError):
            found = store.entry("alive", directory)
            assert found is not None
            found.close()
        with suppress(OSError, ContainerError):
            store.clean(directory)
        with suppress(OSError, ContainerError):
            store.clean(directory, ["alive"])
        with suppress(OSError, ContainerError):
            unowned.clean(lambda: (), directory, -1.0)
        with pytest.raises((OSError, ContainerError)):
            make(directory, "alive")
        promised = PromisedRequests(directory)
        with promised.known() as known:
            assert known is None or len(known) == 1
        promised.close()
    assert ["alive"] == os.listdir(directory)


def test_limits_that_cannot_be_opened_for_want_of_descriptors_are_not_none(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another thread took the last one."""
    make(directory, "alive")

    def full(entry: store.Entry) -> Limits:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr(store.Entry, "limits", full)
    with pytest.raises(ContainerError, match="too many open files"):
        admission.others(StoredShare("new"), directory)
    promised = PromisedRequests(directory)
    with promised.known() as known:
        assert known is None
    promised.close()
