"""Fixtures for a machine with an NVIDIA GPU: those of tests/support/fixtures.py, the runtimes, and a CUDA program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import gpuhost
from tests.support.bed import Bed
from tests.support.fixtures import ask, bed, need, runc, runtime, whole_bed
from tests.support.runtimes import OciRuntime

__all__ = ["ask", "bed", "need", "runc", "runtime", "whole_bed"]


@pytest.fixture(params=["crun", "runc"])
def native(request: pytest.FixtureRequest, ask: Callable[[str, str], OciRuntime]) -> OciRuntime:
    """Both runtimes, in a cgroup layout of this machine that they work in."""
    return ask(request.param, gpuhost.view())


@pytest.fixture(scope="session")
def vectoradd(whole_bed: Bed) -> Path:
    """A CUDA program, compiled here."""
    program = gpuhost.compile_program(whole_bed.directory("cuda"))
    if program is None:
        pytest.skip("no nvcc on this machine")
    return program
