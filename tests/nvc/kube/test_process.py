"""`nvc-py kube driver` as a process: its own inventory, the end by SIGTERM, what it takes of the machine."""

from __future__ import annotations

import contextlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nvc.model import Host
from tests.nvc.kube.conftest import SHARE, Bed
from tests.support.leftovers import wait_until

ROOT = Path(__file__).parents[3]
PREPARES, IDLE_S = 100, 3
#: Wake-ups a second; each server of gRPC's has some ten.
WOKEN = 20


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def _threads(pid: int) -> dict[str, tuple[int, float]]:
    """How often each thread went to sleep, and its processor time in seconds; one may end meanwhile."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            run_ns = int((task / "schedstat").read_text().split()[0])
            found[task.name] = _status(int(task.name), "voluntary_ctxt_switches"), run_ns / 1e9
    return found


def _idle(pid: int) -> tuple[float, float]:
    """Wake-ups a second, and the part of a core."""
    before = _threads(pid)
    time.sleep(IDLE_S)
    after = _threads(pid)
    slept, ran = (sum(row[n] - before.get(task, (0, 0.0))[n] for task, row in after.items()) for n in (0, 1))
    return slept / IDLE_S, ran / IDLE_S


def test_a_process_serves_and_ends(bed: Bed, sim: Callable[[str], Host]) -> None:
    machine = sim("h100x8").root
    words = [f"--sim={machine}", "kube", "driver", "--node=node-a", f"--kubeconfig={bed.kubeconfig}"]
    where = [f"--kubelet={bed.kubelet.directory}", f"--cdi-dir={bed.cdi}", f"--kernel-log={bed.kernel_log}"]
    command = [sys.executable, "-m", "nvc", *words, *where, "--hook=/opt/bin/nvc-cdi-hook"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: bed.kubelet.registrations() and len(bed.api.slices) == 8, seconds=60)
            taken = []
            for number in range(PREPARES):
                name, row = f"claim-{number}", {**SHARE, "consumedCapacity": {"memory": "64Mi", "compute": "0"}}
                uid = bed.api.add_claim([row], name=name)
                endpoint = str(bed.kubelet.directory / "plugins/gpu.nvc.dev/dra.sock")
                begun = time.monotonic()
                answer = bed.kubelet.prepare((name, uid), endpoint=endpoint)[uid]
                taken.append((time.monotonic() - begun) * 1000)
                assert "" == answer.error
            memory = _status(process.pid, "VmHWM") >> 10
            # Connections that were just closed have timers.
            woken, idle = wait_until(lambda: found if (found := _idle(process.pid))[0] < WOKEN else None, seconds=30)
            taken.sort()
            print(
                f"prepare: median {statistics.median(taken):.1f} ms, p99 {taken[-2]:.1f} ms of {PREPARES}; "
                f"{memory} MB; idle {idle * 100:.2f} % of a core, {woken:.0f} wake-ups a second"
            )
            assert memory < 80
            reads = [path for method, path in bed.api.asked if method == "GET" and "/resourceclaims/" in path]
            assert len(reads) == PREPARES, "a status is written from what was read"
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=30)
            assert 0 == process.returncode, told
            assert '"event":"ended"' in told
            assert "Traceback" not in told
        finally:
            process.kill()
    assert [] == bed.kubelet.registrations()
    assert len(list(bed.cdi.glob("nvc.dev-claim_*"))) == PREPARES
