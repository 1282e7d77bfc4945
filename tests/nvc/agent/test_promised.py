"""``share set`` of memory by the agent: what the others were promised is known, and the store is not read for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nvc.agent.agent import Agent
from nvc.agent.claims import Claims
from nvc.agent.promised import PromisedRequests
from nvc.agent.verbs import Verbs
from nvc.base.errors import ContainerError
from nvc.linux import const
from nvc.share import admission, change, fits, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.policy import Policy
from nvc.share.spec import parse_gpu
from nvc.share.store import StoredShare, start_time
from tests.support.inventories import gpu

GIB = 1 << 30
UUID = "GPU-b8058b66-3950-5eb2-94c2-df90166ee487"
KNOWN = gpu(0, "0000:01:00.0", UUID).replace(memory=80 * GIB)
KEYS = [f"c{number}" for number in range(60)]
#: Names of files that were opened while ``counted``.
OPENED: list[str] = []
COUNTING = threading.Event()


def _opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and COUNTING.is_set():
        OPENED.append(str(arguments[0]))


sys.addaudithook(_opened)


@contextmanager
def counted() -> Iterator[None]:
    OPENED.clear()
    COUNTING.set()
    try:
        yield
    finally:
        COUNTING.clear()


def limits(memory: int, most: int = 0) -> Limits:
    size = memory * GIB
    return Limits((ResolvedGpu(UUID, 0, size, request=size if most else 0, most=most * GIB),))


def add(directory: str, key: str, found: Limits, *, group: str = "", since: int | None = None) -> None:
    pid = os.getpid()
    record = StoredShare(key, key, pid, start_time(pid) if since is None else since, group=group)
    store.create(record, found, b"", directory=directory)


@pytest.fixture
def shares(tmp_path: Path) -> str:
    directory = str(tmp_path / "s")
    add(directory, "own", limits(8))
    return directory


Known = Callable[[], AbstractContextManager[admission.Promises | None]]


def seen(promised: PromisedRequests) -> admission.Promises:
    with promised.known() as found:
        assert found is not None
        return found


def put(directory: str, spec: str, known: Known, key: str = "own") -> None:
    with store.find(key, directory) as entry, change.Hold(entry) as held:
        change.apply(held, Policy(), parse_gpu(spec), "", lambda: (KNOWN,), force=True, known=known)


def of(directory: str, key: str) -> ResolvedGpu:
    with store.find(key, directory) as entry:
        return entry.limits().gpus[0]


@pytest.mark.parametrize("range_of_another", [False, True])
def test_it_opens_as_many_files_beside_hundreds_as_beside_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, range_of_another: bool
) -> None:
    """All entries were read under the store's lock: 39 ms with 500 tenants, in which no container started."""
    counts = {}
    for number in (1, 60):
        directory = str(tmp_path / f"s{number}")
        add(directory, "own", limits(1))
        for key in KEYS[:number]:
            add(directory, key, limits(1, 2) if range_of_another and key == "c0" else limits(1))
        agent: Any = SimpleNamespace(
            options=SimpleNamespace(config="", shares=directory),
            tenants=SimpleNamespace(find=lambda word: SimpleNamespace(name=word, living=SimpleNamespace(key=word))),
            inventory=(KNOWN,),
            check_change=lambda tenant, after: None,
            journal=SimpleNamespace(write=lambda event, **fields: None),
            promised=PromisedRequests(directory),
        )
        agent.locked = lambda tenant, act, agent=agent: Agent.locked(agent, tenant, act)

        async def put_in_force(tenant: object) -> None:
            pass

        agent.put_in_force = put_in_force
        verb, caller = Verbs(agent).handlers()["set"], SimpleNamespace(pid=1)
        for size in (2, 3):
            with counted():
                asyncio.run(verb({"container": "own", "spec": f"mem={size}Gi"}, caller))  # type: ignore[arg-type]
            assert of(directory, "own").memory == size * GIB
        counts[number] = len(OPENED)
        agent.promised.close()
    assert counts[1] == counts[60] > 3


def test_what_shares_without_a_guard_have_is_known_without_a_look_at_the_others(tmp_path: Path) -> None:
    """While a share moved, the whole store was read every two seconds."""
    directory = str(tmp_path / "s")
    for key in KEYS:
        add(directory, key, limits(1))
    add(directory, "library", limits(2))
    add(directory, "over", limits(2), since=1)
    guarded = [SimpleNamespace(number=0, members=[SimpleNamespace(key=key)], limits=limits(1)) for key in KEYS]
    agent: Any = SimpleNamespace(
        options=SimpleNamespace(shares=directory),
        tenants=guarded,
        inventory=(KNOWN,),
        promised=PromisedRequests(directory),
    )
    claims, idleness = [], cast("Any", SimpleNamespace())
    for _ in range(2):
        claims.append(Claims(agent, idleness))
        with counted():
            claims[-1].look()
        assert claims[-1]._library == {UUID: 2 * GIB}
    assert len(OPENED) <= 4, "the store's directory, and processes without a guard"
    put(directory, "mem=1Gi", nullcontext, "library")
    claims[-1].look()
    assert claims[-1]._library == {UUID: GIB}
    agent.promised.close()


def test_less_than_before_is_given_without_a_look_at_the_others(shares: str) -> None:
    add(shares, "other", limits(80))

    def fail() -> AbstractContextManager[admission.Promises]:
        raise AssertionError("asked")

    put(shares, "mem=7Gi", fail)
    with pytest.raises(AssertionError, match="asked"):
        put(shares, "mem=8Gi", fail)


def test_it_follows_what_others_do(shares: str) -> None:
    promised = PromisedRequests(shares)
    put(shares, "mem=10Gi..20Gi", promised.known)
    add(shares, "other", limits(60))  # a container that starts
    with pytest.raises(ContainerError, match="does not fit"):
        put(shares, "mem=21Gi..40Gi", promised.known)
    put(shares, "mem=20Gi", nullcontext, "other")  # a command that knows no agent
    put(shares, "mem=60Gi..70Gi", promised.known)
    with pytest.raises(ContainerError, match="does not fit"):
        put(shares, "mem=61Gi..70Gi", promised.known)
    store.remove("other", shares)
    put(shares, "mem=80Gi..80Gi", promised.known)
    add(shares, "other", limits(20))
    assert seen(promised).of(UUID, 80 * GIB) == (2, 100 * GIB)
    promised.close()


def test_a_change_that_fails_leaves_no_promise(shares: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose process was killed in the middle: only what is written counts."""
    add(shares, "other", limits(10, 20))
    promised = PromisedRequests(shares)
    put(shares, "mem=9Gi", promised.known)
    with monkeypatch.context() as patch:
        patch.setattr(change, "write", lambda entry, after: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            put(shares, "mem=70Gi", promised.known)
    put(shares, "mem=60Gi..70Gi", promised.known, "other")
    with pytest.raises(ContainerError, match="does not fit"):
        put(shares, "mem=72Gi..80Gi", promised.known, "other")
    promised.close()


def test_what_has_ended_is_in_no_others_way(shares: str) -> None:
    """Its entry is counted as long as it is there; before a change is refused, the living are."""
    promised = PromisedRequests(shares)
    add(shares, "ended", limits(70, 80), since=1)
    put(shares, "mem=60Gi..70Gi", promised.known)
    promised.close()


def test_two_changes_at_once_do_not_both_find_room(shares: str) -> None:
    add(shares, "other", limits(8, 80))
    promised = PromisedRequests(shares)
    begun, said = threading.Barrier(2), []

    def act(key: str, known: Known) -> None:
        begun.wait()
        try:
            put(shares, "mem=50Gi..80Gi", known, key)
            said.append("put")
        except ContainerError:
            said.append("refused")

    for round_ in range(40):
        knows = (promised.known, promised.known if round_ % 2 else nullcontext)
        threads = [threading.Thread(target=act, args=pair) for pair in zip(("own", "other"), knows, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(said) == ["put", "refused"]
        said.clear()
        for key in ("own", "other"):
            put(shares, "mem=8Gi..80Gi", nullcontext, key)
    promised.close()


def test_a_group_counts_once_with_what_it_has_most_of(shares: str) -> None:
    """A container of it that starts has what it asked for, not yet what the group was given."""
    promised = PromisedRequests(shares)
    seen(promised)
    add(shares, "g1", limits(60, 70), group="g")
    add(shares, "g2", limits(8, 70), group="g")
    for found in (seen(promised), admission.others(StoredShare("new"), shares)):
        assert (found.of(UUID, 80 * GIB), found.of(UUID, 80 * GIB, "group g")) == ((2, 68 * GIB), (1, 8 * GIB))
        assert (found.have_range(UUID), found.have_range(UUID, "group g")) == (True, False)
    promised.close()


def test_what_was_damaged_is_looked_at_again(shares: str) -> None:
    promised = PromisedRequests(shares)
    add(shares, "other", limits(20))
    os.chmod(f"{shares}/other/container.json", 0o666)
    assert seen(promised).of(UUID, 80 * GIB) == (1, 8 * GIB)
    os.chmod(f"{shares}/other/container.json", 0o600)
    assert seen(promised).of(UUID, 80 * GIB) == (2, 28 * GIB)
    shutil.rmtree(f"{shares}/other")
    assert seen(promised).of(UUID, 80 * GIB) == (1, 8 * GIB)
    promised.close()


def test_another_store_in_its_place_is_read_anew(shares: str) -> None:
    promised = PromisedRequests(shares)
    assert seen(promised).of(UUID, 80 * GIB) == (1, 8 * GIB)
    os.rename(shares, f"{shares}.old")
    add(shares, "other", limits(20))
    assert seen(promised).of(UUID, 80 * GIB) == (1, 20 * GIB)
    promised.close()


def test_events_that_were_lost_and_watches_that_lack_are_no_gap(shares: str, monkeypatch: pytest.MonkeyPatch) -> None:
    promised = PromisedRequests(shares)
    seen(promised)
    inotify = promised._inotify
    assert inotify is not None
    monkeypatch.setattr(inotify, "read", lambda names: {const.NO_WATCH: 0x4000})
    add(shares, "other", limits(20))
    assert seen(promised).of(UUID, 80 * GIB) == (2, 28 * GIB)

    def full(*_: object) -> int:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr("nvc.linux.inotify.Inotify.add", full)
    add(shares, "third", limits(1))
    with promised.known() as found:
        assert found is None
    promised.close()


def test_a_change_of_a_group_opens_as_many_files_beside_hundreds_as_beside_one(tmp_path: Path) -> None:
    """All entries were read twice, for those of the group."""
    counts = {}
    for number in (1, 60):
        directory = str(tmp_path / f"s{number}")
        for key in KEYS[:number]:
            add(directory, key, limits(1))
        for key in ("own", "second"):
            add(directory, key, limits(8, 40), group="g")
        add(directory, "coming", limits(8, 40), group="g")  # no tenant's yet: it gets what the others have when it is
        members = [SimpleNamespace(key=key) for key in ("own", "second")]
        tenant: Any = SimpleNamespace(living=members[0], members=members)
        agent: Any = SimpleNamespace(options=SimpleNamespace(shares=directory))
        with counted():
            Agent.locked(agent, tenant, lambda entry: change.pause(entry, paused=True))
        counts[number] = len(OPENED)
        paused = {}
        for key in ("own", "second", "coming", "c0"):
            with store.find(key, directory) as entry:
                paused[key] = entry.limits().paused
        assert paused == {"own": True, "second": True, "coming": False, "c0": False}
    assert counts[1] == counts[60] > 5


def test_two_threads_never_look_at_once(shares: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that asks may be killed: the next one has its lock, and the agent may still be answering the first."""
    promised = PromisedRequests(shares)
    look, inside, most = PromisedRequests._look, [0], [0]

    def slow(one: PromisedRequests) -> object:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        found = look(one)
        inside[0] -= 1
        return found

    monkeypatch.setattr(PromisedRequests, "_look", slow)
    found = os.stat(shares)
    question = fits.Question(found.st_dev, found.st_ino, "a", (), ())

    def use() -> None:
        for _ in range(5):
            promised._check(question)
            with promised.known() as known:
                assert known is not None

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    promised.close()
    assert most == [1]
