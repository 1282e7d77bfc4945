"""PyTorch, JAX and CuPy where they are: the interpreter that has them, found once."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import dataclass

import pytest

from tests.support.loose_share import without_ours

#: Read once: tests see no NVC_ variable.
_INTERPRETER = os.environ.get("NVC_FRAMEWORKS_PYTHON", "")
_NAMES = ("torch", "jax", "cupy")
_LOOK = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"


@dataclass(frozen=True)
class Frameworks:
    """interpreter: its path; names: which of the three it can import."""

    interpreter: str
    names: frozenset[str]

    @classmethod
    @functools.cache
    def find(cls) -> Frameworks:
        """NVC_FRAMEWORKS_PYTHON's, else that of the first python3 in PATH."""
        interpreter = _INTERPRETER or shutil.which("python3") or ""
        if not interpreter:
            return cls("", frozenset())
        done = subprocess.run(
            [interpreter, "-c", _LOOK, *_NAMES],
            capture_output=True,
            text=True,
            env=without_ours(os.environ),
            check=False,
        )
        return cls(interpreter, frozenset(done.stdout.split()))


def require(name: str) -> None:
    """Skip unless the interpreter has the framework."""
    found = Frameworks.find()
    if name not in found.names:
        pytest.skip(f"{found.interpreter or 'python3'} has no {name} (NVC_FRAMEWORKS_PYTHON names another)")
