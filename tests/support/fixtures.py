"""Fixtures for real containers: one test bed a worker, runtimes by name, and nothing left behind.

The conftest.py of tests/system and of tests/gpu take all of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.support import cgroupview, leftovers
from tests.support.bed import PAIRS, Bed, Unavailable
from tests.support.runtimes import OciRuntime

Need = Callable[..., None]


def _lacking(why: str) -> None:
    must = os.environ.get("NVC_MUST_RUN", "").split(",")
    if "system" in must or "gpu" in must:
        pytest.fail(f"{why}, and NVC_MUST_RUN names {','.join(must)}")
    pytest.skip(why)


@pytest.fixture(scope="session")
def whole_bed() -> Iterator[Bed]:
    """The worker's bed. At the end the machine is as it was, or the last test fails with what is left."""
    bed = Bed()
    yield bed
    left = bed.close()
    assert left == [], "tests left this on the machine:\n" + "\n".join(left)


@pytest.fixture
def bed(whole_bed: Bed) -> Iterator[Bed]:
    """The bed, with the same promise for one test."""
    yield whole_bed
    left = leftovers.everything(whole_bed.token)
    if left:
        leftovers.remove(whole_bed.token)
    assert left == [], "the test left this on the machine:\n" + "\n".join(left)


@pytest.fixture
def need() -> Need:
    """Skip (with NVC_MUST_RUN: fail) unless these programs are installed."""

    def check(*programs: str) -> None:
        missing = [name for name in programs if shutil.which(name) is None]
        if missing:
            _lacking(f"{', '.join(missing)} not installed")

    return check


@pytest.fixture
def ask(bed: Bed) -> Iterator[Callable[[str, str], OciRuntime]]:
    """A runtime by name and cgroup view, cleaned up after the test."""
    made: list[OciRuntime] = []

    def get(name: str, view: str) -> OciRuntime:
        try:
            made.append(bed.runtime(name, view))
        except Unavailable as error:
            if "installed" in str(error):
                _lacking(str(error))
            pytest.skip(str(error))
        return made[-1]

    yield get
    for runtime in made:
        runtime.clean()


@pytest.fixture(params=PAIRS, ids=lambda pair: "-".join(pair))
def runtime(request: pytest.FixtureRequest, ask: Callable[[str, str], OciRuntime]) -> OciRuntime:
    """Each runtime in each cgroup view that works."""
    return ask(*request.param)


@pytest.fixture
def runc(ask: Callable[[str, str], OciRuntime]) -> OciRuntime:
    """runc as this machine is: what a test takes that is not about runtimes."""
    return ask("runc", cgroupview.available()[0].name)
