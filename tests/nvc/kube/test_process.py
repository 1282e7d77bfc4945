"""`nvc-py kube driver` as a process: its own inventory, the end by SIGTERM, what it takes of the machine."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nvc.model import Host
from tests.nvc.kube.conftest import SHARE, Bed, eventually

ROOT = Path(__file__).parents[3]
PREPARES = 100


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def _ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def test_a_process_serves_and_ends(bed: Bed, sim: Callable[[str], Host]) -> None:
    machine = sim("h100x8").root
    words = [f"--sim={machine}", "kube", "driver", "--node=node-a", f"--kubeconfig={bed.kubeconfig}"]
    where = [f"--kubelet={bed.kubelet.directory}", f"--cdi-dir={bed.cdi}", f"--kernel-log={bed.kernel_log}"]
    command = [sys.executable, "-m", "nvc", *words, *where, "--hook=/opt/bin/nvc-cdi-hook"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: bed.kubelet.registrations() and len(bed.api.slices) == 8, 60)
            taken = []
            for _ in range(PREPARES):
                uid = bed.api.add_claim([{**SHARE, "consumedCapacity": {"memory": "64Mi", "compute": "0"}}])
                endpoint = str(bed.kubelet.directory / "plugins/gpu.nvc.dev/dra.sock")
                begun = time.monotonic()
                answer = bed.kubelet.prepare(("claim", uid), endpoint=endpoint)[uid]
                taken.append((time.monotonic() - begun) * 1000)
                assert "" == answer.error
            memory, before = _status(process.pid, "VmHWM") >> 10, _ticks(process.pid)
            time.sleep(3)
            idle = (_ticks(process.pid) - before) / os.sysconf("SC_CLK_TCK") / 3
            taken.sort()
            print(
                f"prepare: median {statistics.median(taken):.1f} ms, p99 {taken[-2]:.1f} ms of {PREPARES}; "
                f"{memory} MB; idle {idle * 100:.2f} % of a core"
            )
            assert memory < 120, "the goal is 80 MB"
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=30)
            assert 0 == process.returncode, told
            assert '"event":"ended"' in told
            assert "Traceback" not in told
        finally:
            process.kill()
    assert [] == bed.kubelet.registrations()
    assert len(list(bed.cdi.glob("nvc.dev-claim_*"))) == PREPARES
