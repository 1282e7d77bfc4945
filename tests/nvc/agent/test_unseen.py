"""What the agent says of guards that cannot see something: once, whichever container it is of."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from nvc.agent.registry import _UNSEEN
from nvc.guard.supervisors import Supervisors
from tests.support.admitted import KEY, AdmittedContainers, look

pytestmark = pytest.mark.root

PROGRAM = Path(__file__).parent / "programs/without_perf_events.py"


def two_of(place: AdmittedContainers) -> list[tuple[object, object]]:
    """Messages and hints of warnings, when two containers came and went."""
    listener, other = os.pipe()
    for key in (KEY, "c2"):
        process = place.process if key == KEY else place.another(key, "", place.limits.replace(container=key))
        assert place.admit(listener, process)
        place.supervisors.refresh(max(one.number for one in place.tenants))
        asyncio.run(look(place.tenants, place.supervisors))
    os.close(other)
    assert place.are_gone()
    os.close(listener)
    return [(one["message"], one.get("hint")) for one in place.told if one["event"] == "warning"]


@pytest.mark.parametrize("has_events", [True, False], ids=["perf events", "no perf events"])
def test_a_kernel_that_reports_no_execve_is_told_once(tmp_path: Path, has_events: bool) -> None:
    pytest.importorskip("pyseccomp")
    with AdmittedContainers(tmp_path) as place:
        if not has_events:
            start = tmp_path / "monitor"
            start.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAM} {place.supervisors._monitor} "$@"\n')
            start.chmod(0o755)
            place.supervisors._monitor = str(start)
        told = two_of(place)
    if has_events and told:
        pytest.skip("this kernel, or this user, has no perf events")
    assert told == ([] if has_events else [_UNSEEN[1]])


def test_a_guard_without_a_client_of_the_driver_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = Supervisors.state
    monkeypatch.setattr(Supervisors, "state", lambda self, number: (state(self, number)[0], False, True))
    with AdmittedContainers(tmp_path) as place:
        assert two_of(place) == [_UNSEEN[0]]
