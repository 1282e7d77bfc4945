"""The driver fails under guarded containers, the GPU is lost: nothing hangs or is given, the ledger is right."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import leftovers
from tests.support.agentbed import Held, RunningAgent
from tests.support.bed import Bed
from tests.support.manager import ALLOC, FREE, VIDEO_MEMORY, ioctl, request
from tests.support.runtimes import OciRuntime
from tests.system.test_agent import GIB, agent, behind, empty, machine, tenant, tree

__all__ = ["agent", "machine", "tree"]
pytestmark = pytest.mark.system

#: struct sim_fault of native/sim/device.h: escape, number, status, after. Escape 0xff: the GPU is lost.
FAULT = struct.Struct("=4I")
EVERYTHING = 0xFF
#: nvstatuscodes.h: NV_ERR_GPU_IS_LOST, NV_ERR_TIMEOUT.
LOST, TIMEOUT = 0x0F, 0x65


#: Bytes of a channel group's context, as native/rm charges them.
CONTEXT = 4608 << 10


def fault(agent: RunningAgent, escape: int, number: int, status: int, after: int = 0) -> None:
    file = os.open(f"{agent.machine}/dev/nvidiactl", os.O_RDWR | os.O_CLOEXEC)
    try:
        told = ctypes.create_string_buffer(FAULT.pack(escape, number, status, after), FAULT.size)
        ioctl(file, request(0xE5, FAULT.size, kind="S"), told)
    finally:
        os.close(file)


@contextmanager
def lost(agent: RunningAgent) -> Iterator[None]:
    fault(agent, EVERYTHING, 0, LOST)
    try:
        yield
    finally:
        fault(agent, EVERYTHING, 0, 0)


def used(agent: RunningAgent, held: Held) -> int:
    known = agent.tenant(held.name)
    assert known is not None
    return known.gpus[0].memory


def test_a_gpu_that_is_lost(bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path) -> None:
    wrapped = behind(bed, runc, agent)
    with Held(wrapped, tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        with lost(agent):
            # What the driver says to every call reaches the program, whatever its quota is.
            other = held.execute("rawalloc", "1", "1024", "once")
            assert (other.code, other.out) == (1, "errno=0\n"), other.text
            # A continued allocation of a client whose outcome is not known counts a context (docs/internals/guard.md).
            assert used(agent, held) in (2 * GIB, 2 * GIB + CONTEXT)
            # One after the other: agents that never saw the GPU take over, too.
            agent.kill()
            agent.start()
            assert agent.of("ready")[-1]["tenants"] == 1
            assert used(agent, held) in (2 * GIB, 2 * GIB + CONTEXT)
            code, said = held.end()
            assert (code, "failed=2 passed=0" in said, "odd=0xf" in said) == (1, True, True), said
            assert empty(agent)
    # It is found again: the same agent guards the next container.
    with Held(wrapped, tenant(tree, "2", "1024", "0", share="mem=2Gi")) as held:
        assert held.line() == "held"
        code, said = held.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said
    assert empty(agent)
    told = [event for event in agent.events() if event["event"] in ("warning", "refused")]
    assert len(told) < 10, told


def test_calls_of_the_driver_that_fail_are_not_charged(
    bed: Bed, runc: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    with Held(behind(bed, runc, agent), tenant(tree, "1", "1024", "0", share="mem=1Gi")) as held:
        assert held.line() == "held"
        agent.call("set", container=held.name, spec="mem=4Gi")
        # The second allocation fails: the program hears of it, and the share has as much room as before.
        fault(agent, ALLOC, VIDEO_MEMORY, TIMEOUT, after=2)
        failed = held.execute("rawalloc", "3", "1024", "once")
        assert "failed=1 passed=1 " in failed.out, failed.text
        assert leftovers.until(lambda: used(agent, held) == GIB, seconds=30)
        again = held.execute("rawalloc", "3", "1024", "0.05")
        assert (again.code, "failed=0 passed=0" in again.out) == (0, True), again.text
        # A freeing fails: the memory stays charged until its process ends.
        fault(agent, FREE, 0, TIMEOUT, after=1)
        kept = held.execute("rawalloc", "3", "1024", "once")
        assert "failed=1 passed=0" in kept.out, kept.text
        assert leftovers.until(lambda: used(agent, held) == GIB, seconds=30)
        code, said = held.end()
        assert (code, "failed=0 passed=0" in said) == (0, True), said
    assert empty(agent)
