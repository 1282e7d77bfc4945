"""What a container without a GPU pays for."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.repeated import good

ROOT = Path(__file__).parents[2]
#: Our own modules on the early path. Each costs every container a fifth of a millisecond.
OURS = {
    "hook",
    "hook.__main__",
    "hook.arguments",
    "hook.bundle",
    "hook.environment",
    "hook.files",
    "hook.process",
    "hook.state",
    "hook.swarm",
    "nvc",
    "nvc.errors",
    "nvc.record",
    "rpc",
    "rpc.codec",
}
#: From the standard library, beyond what the interpreter starts with: built in or frozen, except _json (a library
#: on some builds).
THEIRS = {"__future__", "_collections_abc", "_json", "_stat", "errno", "genericpath", "os", "os.path", "posixpath",
          "select", "stat"}  # fmt: skip
PRINT_IMPORTS = Path(__file__).parent / "programs/print_imports.py"


def test_imports_of_a_container_without_a_gpu(bundle: Any) -> None:
    bundle.write()

    done = subprocess.run(
        [sys.executable, "-I", "-S", PRINT_IMPORTS, ROOT],
        input=bundle.state(),
        capture_output=True,
        timeout=20,
        check=True,
    )

    assert set(done.stdout.decode().split()) <= OURS | THEIRS
    assert set(done.stdout.decode().split()) >= OURS


def seconds(command: list[str], state: Path) -> float:
    with open(state, "rb") as stdin:
        start = time.perf_counter()
        # With a timeout Python would look for its end after 1, 3, 7 and 15 ms only.
        subprocess.run(command, stdin=stdin, check=True)
        return time.perf_counter() - start


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a processor of its own")
def test_time_of_a_container_without_a_gpu(bundle: Any, launcher: Path, tmp_path: Path) -> None:
    """The goal (1.5, bench) with room for a busy machine: the ratio of the fastest of interleaved runs."""
    bundle.write()
    state = tmp_path / "state.json"
    state.write_bytes(bundle.state())

    def ratio() -> float:
        bare, hook = [], []
        for _ in range(25):
            bare.append(seconds([sys.executable, "-I", "-S", "-c", "pass"], state))
            hook.append(seconds([sys.executable, "-I", "-S", str(launcher), "prestart"], state))
        return min(min(hook) / min(bare), statistics.median(hook) / statistics.median(bare))

    good(ratio, lambda got: got <= 1.8)


def test_early_path_starts_no_process(bundle: Any, hook_process: Callable[..., Any]) -> None:
    bundle.write()

    done = hook_process("prestart", data=bundle.state())

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
