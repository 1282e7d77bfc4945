"""What a container without a GPU pays for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    "nvc.base.budgets",
    "nvc.base.errors",
    "nvc.base.gobool",
    "nvc.base",
    "nvc.base.record",
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


def test_early_path_starts_no_process(bundle: Any, hook_process: Callable[..., Any]) -> None:
    bundle.write()

    done = hook_process("prestart", data=bundle.state())

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_share_and_its_guard_import_no_heavy_part_of_the_standard_library() -> None:
    """nvc-runtime and the hook of CDI specifications: a pod waits for both."""
    ours = "hook.runtime.guard, hook.runtime.granted, hook.runtime.joined, hook.cdi, nvc.cdi.worker, nvc.inject.share"
    heavy = ("socket", "enum", "selectors", "collections", "re", "subprocess", "logging", "functools", "typing")
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import {ours}, nvc.share.protocol; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)

    assert set(heavy).isdisjoint(done.stdout.split())
