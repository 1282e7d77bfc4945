"""Pages made one's own in one go, after a fork."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from nvc.linux import const, memory, syscalls
from nvc.linux.syscalls import SyscallError
from tests.support.native import CHECKOUT

SIZE = 4 << 20
PAGES = SIZE // 4096


def faults_of_a_fork(*, settled: bool) -> int:
    """Page faults of a child that writes to what it inherited."""
    inherited = bytearray(b"x" * SIZE)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if settled:
                memory.prefault()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for place in range(0, SIZE, 4096):
                inherited[place] = 1
            os.write(write, b"%d" % (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = file.read()
    os.waitpid(child, 0)
    return int(told)


def test_a_settled_fork_has_paid_already() -> None:
    try:
        syscalls.madvise(0, 0, const.MADV_POPULATE_READ)
    except SyscallError as error:
        pytest.skip(f"this kernel cannot populate: {error}")

    # In a process of its own: in one that runs many tests the pages lie in the middle of a larger mapping.
    command = "from tests.nvc.linux.test_memory import faults_of_a_fork; print(faults_of_a_fork(settled={}))"
    settled, unsettled = (
        int(
            subprocess.run(
                [sys.executable, "-c", command.format(how)], cwd=CHECKOUT, capture_output=True, check=True
            ).stdout
        )
        for how in (True, False)
    )
    assert settled < PAGES // 8 < unsettled


def test_a_kernel_that_cannot_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "unavailable", {"madvise"})
    memory.prefault()
