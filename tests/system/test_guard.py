"""The guard's quota, with real notifications of the kernel on a simulated GPU: exact, and the same on every path."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from pathlib import Path

import pytest

from tests.support.leftovers import wait_until
from tests.support.native import build
from tests.support.repeated import good
from tests.support.simgpu import MIB
from tests.support.tenants import Tenants, guarded, prepare

pytestmark = pytest.mark.root
GIB = 1 << 30
LIMIT = 10 * GIB
PLACE = 0x6000_0000_0000
#: Managed memory counts a millisecond after it was mapped: whether a program sees it is a matter of how fast it asks.
SEEN_LATER = {"managed-memory-lies-on-the-gpu-when-set"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine, and the tool that enters the filter."""
    return prepare(tmp_path_factory.mktemp("machine"))


def exact(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    probe = tenants.probe()
    free, total = probe.info()
    assert total == probe.total() == LIMIT
    assert 0 < free < LIMIT, "a context takes some of it"
    assert probe.alloc(1024, 100) == [9, 2], "CUDA_ERROR_OUT_OF_MEMORY at the limit"
    left = probe.info()[0]
    assert probe.alloc(2, 10000) == [left // (2 * MIB), 2]
    assert tenants.of().memory + probe.info()[0] == LIMIT
    assert probe.nvml()[0] == LIMIT
    assert probe.free() == 0
    assert probe.info() == [free, LIMIT]
    assert set(tenants.reasons()) == {"over-quota"}


def test_the_quota_is_exact_and_every_answer_agrees(place: Path) -> None:
    guarded(place, exact)


def every_way(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    lines = tenants.run(build() / "cuda_alloc", "64", "1024").splitlines()
    said = dict(line.split("=") for line in lines if "=" in line)
    for way in ("plain", "virtual", "asynchronous"):
        assert (said[way], said[f"{way}_error"]) == ("9", "2"), way
    assert said["plain_total_kib"] == str(LIMIT >> 10)
    assert int(said["array"]) == 1
    assert said["start_free_kib"] == said["end_free_kib"], lines
    tenants.wait_until_gone()


def test_every_allocator_ends_at_the_quota(place: Path) -> None:
    guarded(place, every_way)


def claims(tenants: Tenants) -> None:
    tenants.add(memory=40 * GIB)
    out = (
        tenants.start(build() / "cuda_claims").communicate(timeout=60)[0].splitlines()
    )  # its exit code: whether all held
    broken = {line.split()[2] for line in out if line.startswith("not ok")}
    assert broken <= SEEN_LATER
    assert len([line for line in out if line.startswith("ok")]) > 30
    assert set(tenants.reasons()) == {"over-quota"}, "it asks for too much once"
    tenants.wait_until_gone()


def test_a_guarded_libcuda_keeps_every_promise(place: Path) -> None:
    guarded(place, claims)


def killed(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    for _ in range(3):
        probe = tenants.probe()
        probe.begin("churn", 64, 1_000_000)
        probe.alloc  # noqa: B018
        before = tenants.status().notifications
        wait_until(lambda before=before: tenants.status().notifications > before + 50, "it allocates")
        probe.kill()
        wait_until(lambda: tenants.of().memory == 0, "what a killed process had is back")
    tenants.wait_until_gone()


def test_a_process_killed_while_it_allocates_leaves_nothing(place: Path) -> None:
    guarded(place, killed)


def handed_over(tenants: Tenants) -> None:
    """A shell's `first; second` in a container: what the first one had is the second one's at once, as without us."""
    tenants.add(memory=LIMIT)
    heir = tenants.probe()
    free = heir.info()[0]
    for is_asked in (False, True) * 4:
        first = tenants.probe()
        assert first.alloc(1024, 100)[1] == 2
        first.kill()
        if is_asked:
            assert heir.info()[0] == free
        assert heir.alloc(1024, 100) == [free // GIB, 2]
        assert heir.free() == 0
    heir.kill()
    tenants.wait_until_gone()


def test_what_an_ended_process_had_is_there_at_once(place: Path) -> None:
    guarded(place, handed_over)


def several_listeners(tenants: Tenants) -> None:
    """A container's program, and each that is started in it later, has a listener; any may end first."""
    tenants.add(memory=LIMIT)
    probes = [tenants.probe() for _ in range(3)]
    for left in (3, 2, 1):
        wait_until(lambda left=left: tenants.status().listeners == left, f"{left} listeners")
        for probe in probes:
            assert probe.alloc(64, 1) == [1, 0]
        probes.pop(0).kill()
    tenants.wait_until_gone()
    assert tenants.status().listeners == 0
    assert tenants.probe().alloc(64, 1) == [1, 0], "one that comes after that is answered as well"


def test_every_listener_is_answered_whichever_ends(place: Path) -> None:
    guarded(place, several_listeners)


def race(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    probes = [tenants.probe() for _ in range(8)]
    for probe in probes:
        probe.begin("alloc", 64, 1000)
    counts = [probe.end() for probe in probes]
    assert {status for _, status in counts} == {2}
    left = {probe.info()[0] for probe in probes}
    assert len(left) == 1
    assert left.pop() < 64 * MIB
    assert tenants.of().driver_usage == 0 or tenants.of().driver_usage <= LIMIT
    for probe in probes:
        os.kill(probe.process.pid, signal.SIGKILL)
    wait_until(lambda: tenants.of().memory == 0, "everything is back")


def test_eight_processes_that_race_get_one_quota(place: Path) -> None:
    guarded(place, race)


def live(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    probe = tenants.probe()
    assert probe.alloc(1024, 4) == [4, 0]
    tenants.update(memory=3 * GIB)
    assert probe.info() == [0, 3 * GIB], "usage above the limit is not negative room"
    assert probe.alloc(2) == [0, 2]
    tenants.update(memory=20 * GIB)
    assert probe.alloc(1024, 100) == [15, 2]


def test_a_quota_that_changes_counts_at_once(place: Path) -> None:
    guarded(place, live)


def apart(tenants: Tenants) -> None:
    tenants.add(1, memory=4 * GIB)
    tenants.add(2, memory=6 * GIB)
    first, second = tenants.probe(tenant=1), tenants.probe(tenant=2)
    assert (first.total(), second.total()) == (4 * GIB, 6 * GIB)
    assert first.alloc(1024, 100) == [3, 2]
    assert second.alloc(1024, 100) == [5, 2]
    assert first.free() == 0
    assert tenants.of(2).memory > 5 * GIB


def test_two_tenants_have_nothing_to_do_with_each_other(place: Path) -> None:
    guarded(place, apart)


def children(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    probe = tenants.probe()
    assert probe.alloc(1024, 2) == [2, 0]
    held = tenants.of().memory
    assert probe.fork() == [0]
    assert probe.fork("close") == [0]
    assert probe.spawn() == 0
    assert tenants.of().memory == held
    probe.kill()
    tenants.wait_until_gone()


def test_children_that_end_take_nothing_with_them(place: Path) -> None:
    guarded(place, children)


def managed(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    probe = tenants.probe()
    free = probe.info()[0]
    assert probe.map(PLACE, 2048) == 0
    wait_until(lambda: probe.info()[0] == free - 2 * GIB, "the mapping counts")
    assert tenants.of().managed == 2 * GIB
    assert probe.map(PLACE + 4 * GIB, 16 * 1024) == 0
    wait_until(lambda: tenants.of().frozen or tenants.reasons().get("over-quota"), "more than the quota is noticed")
    assert probe.alloc(2) == [0, 2]
    probe.unmap(PLACE + 4 * GIB, 16 * 1024)
    wait_until(lambda: not tenants.of().frozen and tenants.of().managed == 2 * GIB, "unmapping is noticed")
    probe.unmap(PLACE, 2048)
    wait_until(lambda: tenants.of().managed == 0, "all of it")
    assert probe.info()[0] == free


def test_managed_memory_counts_as_it_is_mapped(place: Path) -> None:
    guarded(place, managed)


def scheduled(tenants: Tenants) -> None:
    tenants.add(1, memory=LIMIT)
    tenants.add(2, memory=LIMIT)
    first, second = tenants.probe(tenant=1), tenants.probe(tenant=2)
    for probe in (first, second):
        assert probe.work(3000) == 0
    assert tenants.of(1).groups == 1
    tenants.guard.slice(1, 0, 6000)
    tenants.guard.slice(2, 0, 2000)
    assert tenants.of(1).slice == 6000

    def rates() -> tuple[float, float]:
        second.begin("rate", 500)
        return first.rate(500), second.end()

    mine, _ = good(rates, lambda got: 2.2 * got[1] < got[0] < 4 * got[1])
    tenants.guard.freeze(2, 0, True)
    assert tenants.of(2).frozen
    wait_until(lambda: second.rate(100) == 0, "its channels are off")
    good(rates, lambda got: got[0] > 1.2 * mine and got[1] == 0)
    tenants.guard.freeze(2, 0, False)
    wait_until(lambda: second.rate(100) > 20, "it goes on")


def test_slices_and_freezes_reach_the_driver(place: Path) -> None:
    guarded(place, scheduled)


def without_setresuid(tenants: Tenants) -> None:
    """setresuid fails from here on, as where a security module refuses it."""
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 117), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.syscall(317, 1, 0, program) == 0
    with pytest.raises(PermissionError):
        tenants.add(memory=LIMIT)


def test_a_supervisor_that_keeps_its_rights_takes_no_tenant(place: Path) -> None:
    guarded(place, without_setresuid)


def removed(tenants: Tenants) -> None:
    tenants.add(memory=LIMIT)
    probe = tenants.probe()
    probe.begin("churn", 4, 50_000)
    wait_until(lambda: tenants.status().notifications > 100, "it allocates")
    tenants.guard.remove(1)
    assert probe.end() > 0, "calls without an answer fail"


def test_a_tenant_that_is_removed_gets_errors_and_does_not_hang(place: Path) -> None:
    guarded(place, removed)
