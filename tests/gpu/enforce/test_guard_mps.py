"""A guarded tenant that finds the host's MPS: are cap, pause and quota held when it becomes a client of the server?

With MPS a program computes in the server's context, on channels that the server made, and the pipe directory is given
to every container with ``compute``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.enforce.conftest import PROGRAMS, Starts
from tests.support.bed import Bed
from tests.support.gpumeasure import compile_programs, used_mib
from tests.support.guarded import Guarding
from tests.support.share_table import Table
from tests.support.spoken import Silent, Spoken

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(120)]

GIB = 1 << 30
KERNEL, WINDOW = 0.65, 1.5
CAP, POINTS = 100, 2.0


@pytest.fixture(scope="module")
def programs(whole_bed: Bed) -> Path:
    """Those that are used here alone: compiling all takes longer than these tests."""
    return compile_programs([PROGRAMS / name for name in ("burn.cu", "quota.c")], whole_bed.directory("programs"))


@pytest.fixture
def mps(environment: dict[str, str]) -> Iterator[str]:
    """MPS's control daemon, whose clients are what is started from now on. Skips where it does not start."""
    found = shutil.which("nvidia-cuda-mps-control", path=f"{os.environ['PATH']}:/usr/local/nvidia/bin")
    if not found:
        pytest.skip("no nvidia-cuda-mps-control here")
    place = Path(f"/tmp/nvc-mps-{os.getpid()}")
    place.mkdir(mode=0o700)
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(place), "CUDA_MPS_LOG_DIRECTORY": str(place)}
    daemon = {**os.environ, **own}
    try:
        began = subprocess.run([found, "-d"], env=daemon, capture_output=True, text=True, timeout=20, check=False)
        if began.returncode:
            pytest.skip(f"MPS does not start: {began.stderr}")
        environment.update(own)
        try:
            yield found
        finally:
            subprocess.run([found], input="quit\n", env=daemon, text=True, capture_output=True, timeout=30, check=False)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _rate(program: Spoken, seconds: float = WINDOW) -> float:
    return float(program.ask(f"rate {seconds}"))


def test_a_client_of_mps_is_held_to_its_share(guarding: Guarding, start: Starts, table: Table, mps: str) -> None:
    solo = start("burn", "plain", KERNEL)  # nobody's; it starts the server
    iterations = solo.line().split()[2]
    _rate(solo)
    alone = _rate(solo)
    solo.kill()
    tenant = guarding.tenant(memory=4 * GIB, cap=CAP)
    before = used_mib()
    held = start("burn", "plain", KERNEL, iterations, tenant=tenant)
    held.line()
    _rate(held)
    capped = 100 * _rate(held) / alone
    tenant.pause(True)
    paused = _rate(held, 1.0)
    tenant.pause(False)
    _ends_with_nothing_queued(held)
    quota = start("quota", "malloc", "fill", 64 * GIB, tenant=tenant)
    seen = quota.line()  # it holds everything until it is told a line
    took = used_mib() - before
    quota.kill()
    foreign = tenant.refused().get("foreign-file", 0)  # of the server, which is in no container
    good = abs(capped - CAP / 10) <= POINTS and paused == 0 and took <= 4 * 1024 + 64 and foreign == 0
    table.add(
        "MPS: a guarded client, and the next one",
        goal=f"cap {CAP / 10:g} % within {POINTS:g} points; nothing while paused; 4 GiB",
        got=f"{capped:.2f} %; {paused:.1f}/s while paused; nvidia-smi +{took} MiB ({seen[:60]}); "
        f"files of others refused: {foreign}",
        base=f"{alone:.1f}/s alone",
        good=good,
    )
    assert good


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("guarded", [False, True])
def test_the_next_client_of_mps(
    guarding: Guarding, start: Starts, table: Table, mps: str, guarded: bool, queued: bool
) -> None:
    """After one that ended with work queued the server's next client can fail, as without a guard: a row, no goal."""
    milliseconds = KERNEL if guarded else 100 * KERNEL
    more = {"tenant": guarding.tenant(memory=4 * GIB, cap=CAP)} if guarded else {}
    first = start("burn", "plain", milliseconds, **more)
    first.line()
    _rate(first, 0.5)
    if queued:
        first.end()
        time.sleep(3)
    else:
        _ends_with_nothing_queued(first)
    try:
        after = start("burn", "plain", KERNEL)
        after.line()
        _rate(after, 0.3)
        got, good = f"{_rate(after):.0f}/s", True
        after.kill()  # the server would wait for it
    except Silent as failed:
        got, good = str(failed).rpartition(":")[2], False
    ended = f"{'guarded' if guarded else 'plain'} one that ended {'with' if queued else 'without'} work"
    table.add(
        f"MPS: the client after a {ended}",
        goal="" if queued else "computes",
        got=got,
        good=None if queued else good,
    )
    assert good or queued


def _ends_with_nothing_queued(client: Spoken) -> None:
    client.ask("rest")
    time.sleep(1)
    client.end()
    time.sleep(3)
