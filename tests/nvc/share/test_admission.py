"""Whether the requests of a GPU's shares fit: which count, and which are refused with a message."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from nvc.base.errors import ContainerError
from nvc.model import Gpu
from nvc.share import admission, change, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu, Room
from nvc.share.policy import Policy
from nvc.share.spec import parse_gpu
from nvc.share.store import StoredShare, start_time
from tests.support.inventories import gpu

GIB = 1 << 30
UUID = "GPU-b8058b66-3950-5eb2-94c2-df90166ee487"
OTHER = "GPU-00000000-3950-5eb2-94c2-df90166ee487"


def limits(memory: int, most: int = 0, uuid: str = UUID) -> Limits:
    size = memory * GIB
    return Limits((ResolvedGpu(uuid, 0, size, request=size if most else 0, most=most * GIB),))


def check(
    wanted: Limits, *others: Limits, memory: int = 80, always: bool = False, before: Limits | None = None
) -> None:
    promises = admission.Promises()
    for place, one in enumerate(others):
        promises.put(StoredShare(f"other{place}"), one)
    admission.check((Room(UUID, memory * GIB, always),), wanted, promises, before)


def test_requests_beside_a_range_never_exceed_the_gpu() -> None:
    check(limits(40, 80), limits(20), limits(20, 60))
    with pytest.raises(ContainerError, match=r"a request of 41Gi does not fit .* 2 other containers .* 40960Mi"):
        check(limits(41, 80), limits(20), limits(20, 60))
    with pytest.raises(ContainerError, match="does not fit"):
        check(limits(41), limits(40, 80))


def test_plain_shares_may_exceed_it_unless_the_node_says_otherwise() -> None:
    check(limits(60), limits(60))
    with pytest.raises(ContainerError, match="does not fit"):
        check(limits(60), limits(60), always=True)


@pytest.mark.parametrize("whole", [(limits(0), limits(8, 40)), (limits(8, 40), limits(0))])
def test_a_share_without_a_limit_requests_the_whole_gpu(whole: tuple[Limits, Limits]) -> None:
    with pytest.raises(ContainerError, match="does not fit"):
        check(*whole)
    with pytest.raises(ContainerError, match="does not fit"):
        check(limits(0), limits(1), always=True)


def test_other_gpus_are_not_counted() -> None:
    check(limits(40, 80), limits(80, uuid=OTHER), limits(40))


def test_memory_that_is_not_known_admits_nothing_beside_another() -> None:
    check(limits(8, 40), memory=0)
    with pytest.raises(ContainerError, match="is not known, so requests cannot be admitted"):
        check(limits(8, 40), limits(8), memory=0)


def test_a_running_container_may_ask_for_less_where_too_much_was_given() -> None:
    full = (limits(60), limits(40, 60))
    check(limits(50), *full, before=limits(60))
    with pytest.raises(ContainerError, match="does not fit"):
        check(limits(61), *full, before=limits(60))
    with pytest.raises(ContainerError, match="does not fit"):
        check(limits(50, 70), limits(60), before=limits(60))


def test_a_group_counts_once_and_ended_containers_do_not(tmp_path: Path) -> None:
    pid, since = os.getpid(), start_time(os.getpid())
    for key, group, when in (("a", "g", since), ("b", "g", since), ("c", "", since), ("d", "", since - 1)):
        store.create(StoredShare(key, key, pid, when, group=group), limits(10), b"", directory=str(tmp_path / "s"))
    assert len(admission.others(StoredShare("new"), str(tmp_path / "s"))) == 2
    assert len(admission.others(StoredShare("c"), str(tmp_path / "s"))) == 1
    assert len(admission.others(StoredShare("new", group="g"), str(tmp_path / "s"))) == 1


def test_none_comes_while_one_is_admitted(tmp_path: Path) -> None:
    """What refuses it leaves nothing of it."""
    directory = str(tmp_path / "s")

    def refuse() -> None:
        raise ContainerError("full")

    with pytest.raises(ContainerError, match="full"):
        store.create(StoredShare("a"), limits(1), b"", directory=directory, admit=refuse)
    assert os.listdir(directory) == []


def test_share_set_gives_no_request_that_others_were_promised(tmp_path: Path) -> None:
    directory, policy = str(tmp_path / "s"), Policy()
    for key, found in (("a", limits(8, 40)), ("b", limits(60))):
        store.create(StoredShare(key, key, os.getpid(), start_time(os.getpid())), found, b"", directory=directory)
    known = gpu(0, "0000:01:00.0", UUID).replace(memory=80 * GIB)
    with store.find("a", directory) as entry:
        for inventory, message in (((known,), "does not fit"), ((), "is not known")):
            with pytest.raises(ContainerError, match=message):
                change.apply(entry, policy, parse_gpu("mem=21Gi..60Gi"), "", lambda found=inventory: found, force=True)
        assert entry.limits().gpus[0].request == 8 * GIB
        change.apply(entry, policy, parse_gpu("mem=20Gi..60Gi"), "", lambda: (known,), force=True)
        assert (entry.limits().gpus[0].request, entry.limits().gpus[0].most) == (20 * GIB, 60 * GIB)


@pytest.mark.parametrize("spec", ["mem=20Gi", "mem=20Gi..60Gi"])
def test_none_comes_while_share_set_is_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    """Two changes, or one and a container that starts, would each find room for itself alone."""
    directory = str(tmp_path / "s")
    store.create(StoredShare("a", "a", os.getpid(), start_time(os.getpid())), limits(8), b"", directory=directory)
    known = gpu(0, "0000:01:00.0", UUID).replace(memory=80 * GIB)
    locked, write = [], change.write

    descriptor = os.open(directory, os.O_RDONLY)

    def written(entry: store.Entry, after: Limits) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked.append(False)
        except BlockingIOError:
            locked.append(True)
        write(entry, after)

    def inventory() -> tuple[Gpu, ...]:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the driver may take seconds
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return (known,)

    monkeypatch.setattr(change, "write", written)
    with store.find("a", directory) as entry:
        change.apply(entry, Policy(), parse_gpu(spec), "", inventory, force=True)
    os.close(descriptor)
    assert locked == [True]


def test_a_moved_limit_stays_in_its_range(tmp_path: Path) -> None:
    directory = str(tmp_path / "s")
    store.create(StoredShare("a", "a", os.getpid(), start_time(os.getpid())), limits(8, 40), b"", directory=directory)
    with store.find("a", directory) as entry:
        for wanted, found in ((20, 20), (2, 8), (90, 40)):
            change.move(entry, UUID, wanted * GIB)
            assert entry.limits().gpus[0].memory == found * GIB
