"""Slurm's runtime command alone: what it makes of a bundle, and of one that is none. tests/engines has a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import CHECKOUT

RUN = CHECKOUT / "packaging/slurm/nvc-slurm-run"
GOOD = {"process": {"env": ["A=1", "CUDA_VISIBLE_DEVICES=3", "NVIDIA_VISIBLE_DEVICES=all"]}}


def run(bundle: Path, *, gpus: str | None = None) -> subprocess.CompletedProcess[str]:
    """For the job n1.7, with /bin/echo as the runtime. gpus: the prolog's note, None: there is none."""
    notes = bundle.parent / "notes"
    notes.mkdir(exist_ok=True)
    if gpus is not None:
        (notes / "n1.7").write_text(f"{gpus}\n")
    return subprocess.run(
        [sys.executable, "-IS", str(RUN), "n1.7", str(bundle), "/bin/echo", "ran"],
        env={"NVC_SLURM_DIR": str(notes)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    made = tmp_path / "bundle"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(GOOD))
    return made


@pytest.mark.parametrize(
    ("gpus", "step", "expected"),
    [
        pytest.param("0,1", "", "0,1", id="the job's"),
        pytest.param("0,1", "SLURM_STEP_GPUS=1", "1", id="the step's"),
        pytest.param("0,1", "SLURM_STEP_GPUS=2", "0,1", id="a step never has more than its job"),
        pytest.param("", "", "void", id="a job without GPUs"),
        pytest.param(None, "SLURM_STEP_GPUS=0", "void", id="no prolog has run"),
    ],
)
def test_a_container_gets_the_gpus_of_its_job(bundle: Path, gpus: str | None, step: str, expected: str) -> None:
    config = {"process": {"env": [*GOOD["process"]["env"], *([step] if step else [])]}, "other": [1]}
    (bundle / "config.json").write_text(json.dumps(config))

    done = run(bundle, gpus=gpus)

    assert (0, "ran\n", "") == (done.returncode, done.stdout, done.stderr)
    written = json.loads((bundle / "config.json").read_text())
    kept = ["A=1", *([step] if step else [])]
    assert {"process": {"env": [*kept, f"NVIDIA_VISIBLE_DEVICES={expected}"]}, "other": [1]} == written
    assert ["config.json"] == os.listdir(bundle)


def test_what_a_killed_one_left_is_in_nobodys_way(bundle: Path) -> None:
    (bundle / "config.json.nvc").write_text("{")

    assert 0 == run(bundle).returncode


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param("{}", id="no process"),
        pytest.param('{"process": [1]}', id="a list as process"),
        pytest.param('{"process": {"env": {"A": "1"}}}', id="an object as env"),
        pytest.param('{"process": {"env": [1]}}', id="a number in env"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("\ud800", id="not UTF-8"),
    ],
)
def test_a_bundle_that_is_none_is_one_line(bundle: Path, content: str) -> None:
    (bundle / "config.json").write_bytes(content.encode(errors="surrogatepass"))

    done = run(bundle, gpus="0")

    assert (1, "") == (done.returncode, done.stdout)
    assert 1 == done.stderr.count("\n")
    assert done.stderr.startswith(f"nvc-slurm-run: {bundle}: ")
    assert ["config.json"] == os.listdir(bundle)


def test_a_bundle_without_environment_gets_one(bundle: Path) -> None:
    (bundle / "config.json").write_text('{"process": {"env": null}}')

    assert 0 == run(bundle).returncode
    assert {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}} == json.loads((bundle / "config.json").read_text())
