"""The compiled parts, built once before the first test that needs them."""

from __future__ import annotations

import fcntl
import functools
import importlib.machinery
import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
BUILD = CHECKOUT / "build" / "native"


@functools.cache
def build(*targets: str) -> Path:
    """Run make (under a lock: several pytest processes come here at once); the folder with the results.

    targets: files below that folder; none: everything.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    goals = [f"{CHECKOUT / 'native'}/../build/native/{name}" for name in targets] or ["all", "tests"]
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["make", "-s", "-C", CHECKOUT / "native", *goals], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    return BUILD


def extension() -> Any:
    """``nvc.linux._raw`` as it was built; skips the test where there is none."""
    path = build() / "_raw.abi3.so"
    if not path.exists():
        pytest.skip("not built: no Python headers")
    loader = importlib.machinery.ExtensionFileLoader("nvc.linux._raw", str(path))
    spec = importlib.util.spec_from_loader("nvc.linux._raw", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
