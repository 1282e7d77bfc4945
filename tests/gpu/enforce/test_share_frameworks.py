"""PyTorch, JAX and CuPy reach the limit, say so in their own words, and go on."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.gpu.enforce.conftest import PROGRAMS, Shares
from tests.support import loose_share
from tests.support.bed import Bed
from tests.support.frameworks import Frameworks, require
from tests.support.loose_share import LooseShare
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(200)]

MIB, GIB = 1 << 20, 1 << 30
LIMIT = 10 * GIB
#: Contexts, kernels and workspaces are the share's too: what a framework may have used before it begins.
OWN = 2 * GIB


def _run(bed: Bed, held: LooseShare, script: str, *arguments: str, **variables: str) -> dict[str, Any]:
    environment = {**loose_share.without_ours(os.environ), **bed.env, **held.variables, **variables}
    command = [Frameworks.find().interpreter, str(PROGRAMS / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _judge(table: Table, held: LooseShare, what: str, found: dict[str, Any], word: str, most: int) -> None:
    """Refused near the limit with the framework's own error, its data sound, and it goes on."""
    good = word in found["error"] and most - OWN <= found["taken"] <= most and found["sound"] and found["again"]
    table.add(
        what,
        goal=f"{word} between {(most - OWN) / GIB:.1f} and {most / GIB:.1f} GiB, then goes on",
        got=f"{found['taken'] / GIB:.1f} GiB, {found['error'] or 'no error'}; goes on: {found['again']}",
        good=good,
    )
    assert good, found
    assert held.used() == 0


@pytest.mark.parametrize(
    ("allocator", "backend"),
    [
        pytest.param("", "native", id="native"),
        pytest.param("backend:cudaMallocAsync", "cudaMallocAsync", id="cudaMallocAsync"),
        pytest.param("expandable_segments:True", "native", id="expandable-segments"),
    ],
)
def test_pytorch(bed: Bed, share: Shares, table: Table, allocator: str, backend: str) -> None:
    require("torch")
    held = share(memory=LIMIT)
    # The older name; the newer one, PYTORCH_ALLOC_CONF, is not read by all.
    variables = {"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}

    found = _run(bed, held, "torch_full.py", **variables)

    assert (found["total"], found["backend"]) == (LIMIT, backend)
    _judge(table, held, f"PyTorch, {allocator or 'native'}", found, "OutOfMemoryError", LIMIT)


@pytest.mark.parametrize("preallocate", ["true", "false"])
def test_jax(bed: Bed, share: Shares, table: Table, preallocate: str) -> None:
    require("jax")
    held = share(memory=LIMIT)

    found = _run(bed, held, "jax_full.py", XLA_PYTHON_CLIENT_PREALLOCATE=preallocate)

    assert found["platform"] in ("gpu", "cuda")
    # JAX's pool is 75 % of what is there, whether it takes it at once or as it goes.
    assert found["pool"] <= 0.75 * LIMIT
    _judge(table, held, f"JAX, preallocate={preallocate}", found, "RESOURCE_EXHAUSTED", int(0.75 * LIMIT))


def test_jax_with_all_of_it(bed: Bed, share: Shares, table: Table) -> None:
    require("jax")
    held = share(memory=LIMIT)

    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
    found = _run(bed, held, "jax_full.py", **variables)

    _judge(table, held, "JAX, allocator=platform", found, "RESOURCE_EXHAUSTED", LIMIT)


@pytest.mark.parametrize("pool", ["default", "managed", "async"])
def test_cupy(bed: Bed, share: Shares, table: Table, pool: str) -> None:
    require("cupy")
    held = share(memory=LIMIT)

    found = _run(bed, held, "cupy_full.py", pool)

    assert found["total"] == LIMIT
    word = "OutOfMemoryError" if "OutOfMemoryError" in found["error"] else "cudaErrorMemoryAllocation"
    _judge(table, held, f"CuPy, {pool} pool", found, word, LIMIT)
