"""A tenant with descriptors where the guard does not look is stopped all the same; by a new guard, if it is found."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.leftovers import wait_until
from tests.support.simgpu import Probe
from tests.support.tenants import Tenants, guarded, prepare

pytestmark = pytest.mark.root
GIB = 1 << 30


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine, and the tool that enters the filter."""
    return prepare(tmp_path_factory.mktemp("machine"))


def moved(tenants: Tenants) -> None:
    tenants.add(memory=GIB)
    probe = tenants.probe()
    assert probe.work(3000) == 0
    wait_until(lambda: probe.rate(100) > 20, "it computes")
    assert probe.move() > 0
    tenants.guard.freeze(1, 0, True)
    # Only the calls of the probe itself need the old numbers, so that it can say whether it computes.
    probe.rate(300)
    assert probe.back() > 0
    off(probe)
    tenants.guard.freeze(1, 0, False)
    wait_until(lambda: probe.rate(100) > 20, "it computes again")
    assert "unreachable" not in tenants.reasons()


def test_channels_of_a_moved_descriptor_are_stopped_and_started(place: Path) -> None:
    guarded(place, moved)


def off(probe: Probe) -> None:
    """Its channels are: it computes nothing, though it has its descriptors again, as soon as it has heard of what was
    done before. Raises AssertionError.
    """
    assert probe.work(3000) == 0
    wait_until(lambda: probe.rate(150) == 0, "its channels are off")


def restless(tenants: Tenants) -> None:
    tenants.add(memory=GIB)
    probe = tenants.probe()
    for _ in range(10):
        assert probe.move() > 0
        tenants.guard.freeze(1, 0, True)
        assert probe.back() > 0
        off(probe)
        tenants.guard.freeze(1, 0, False)
        wait_until(lambda: probe.rate(50) > 20, "it computes again")
    assert "unreachable" not in tenants.reasons()


def test_a_tenant_that_moves_its_descriptors_again_and_again_gains_nothing(place: Path) -> None:
    guarded(place, restless)


def hidden(tenants: Tenants) -> None:
    tenants.add(1, memory=GIB)
    tenants.add(2, memory=GIB)
    probe, neighbour = tenants.probe(tenant=1), tenants.probe(tenant=2)
    assert probe.work(3000) == neighbour.work(3000) == 0
    assert probe.hide() > 0
    for tenant in (1, 2):
        tenants.guard.slice(tenant, 0, 4000)
    tenants.guard.freeze(1, 0, True)
    assert probe.show() > 0
    off(probe)
    wait_until(lambda: neighbour.rate(100) > 20, "its neighbour computes")
    assert probe.hide() > 0
    tenants.guard.freeze(1, 0, False)
    assert probe.show() > 0
    wait_until(lambda: probe.rate(100) > 20, "it computes again")
    assert tenants.reasons(1) == tenants.reasons(2) == {}
    probe.kill()
    wait_until(lambda: tenants.of(1).memory == 0, "what it had is refunded")


def test_a_tenant_with_a_file_without_a_descriptor_is_stopped_all_the_same(place: Path) -> None:
    guarded(place, hidden)


def inherited(tenants: Tenants) -> None:
    """What a process has on the GPU would go on without it, and out of reach, as long as a child has its file."""
    tenants.add(memory=GIB)
    probe = tenants.probe()
    assert probe.work(3000) == 0
    assert tenants.of().groups > 0
    child = os.pidfd_open(probe.leave(30))
    probe.kill()
    wait_until(lambda: tenants.of().memory == 0, "what it had is refunded")
    assert tenants.of().groups == 0
    signal.pidfd_send_signal(child, signal.SIGKILL)  # it was there all the time
    os.close(child)


def test_channels_end_with_the_process_that_made_them(place: Path) -> None:
    guarded(place, inherited)


def many(tenants: Tenants) -> None:
    """More clients than the guard remembers, as of a program that begins and ends NVML again and again."""
    tenants.add(memory=GIB)
    probe = tenants.probe()
    assert probe.work(3000) == 0
    for _ in range(12):
        assert probe.clients(40) == 40
        for frozen in (True, False):
            tenants.guard.freeze(1, 0, frozen)
            probe.rate(30)
    wait_until(lambda: probe.rate(100) > 20, "it computes")
    assert "unreachable" not in tenants.reasons()


def test_a_tenant_with_many_clients_is_not_ended(place: Path) -> None:
    guarded(place, many)


def ordinary(tenants: Tenants) -> None:
    """Ends of processes look the same for an instant, and are none of it."""
    tenants.add(memory=GIB)
    for turn in range(6):
        probe = tenants.probe()
        assert probe.work(1000) == 0
        tenants.guard.slice(1, 0, 1000 + turn)
        probe.begin("exit") if turn % 2 else probe.process.terminate()
        for frozen in (True, False) * 10:
            tenants.guard.freeze(1, 0, frozen)
        probe.process.wait(30)
    wait_until(lambda: tenants.of().memory == 0, "nothing is left")
    assert "unreachable" not in tenants.reasons()


def test_processes_that_end_are_not_taken_for_that(place: Path) -> None:
    guarded(place, ordinary)
