"""What ``make bench-scale`` reads in the agent's log."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tools import scale_real
from tools.measuring import Failed


def _lines(*events: tuple[str, str, dict[str, object]]) -> str:
    return "".join(
        json.dumps({"time": 7.5, "event": event, "container": name, **more}) + "\n" for event, name, more in events
    )


def test_the_line_of_an_admission_is_waited_for(tmp_path: Path) -> None:
    """The container's first call can be answered before the agent has written it."""
    log = tmp_path / "log"
    log.write_text(_lines(("register", "a", {}), ("tenant", "b", {})) + '{"time":1,"event":"ten')
    later = threading.Timer(0.2, log.write_text, (_lines(("register", "a", {}), ("tenant", "a", {})),))
    later.start()

    assert scale_real.admitted(log, "a", 20.0) == 7.5

    later.join()
    with pytest.raises(Failed, match="no tenant c"):
        scale_real.admitted(log, "c", 0.05)


def test_why_tenants_are_gone_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    late = ("denial", "a", {"reason": "edge-late"}), ("supervisor-died", "a", {"ended": True})
    log.write_text(_lines(("tenant", "a", {}), ("gone", "a", {}), ("denial", "b", {"reason": "over-quota"}), *late))

    assert scale_real.ends(log, ["a"]) == "a edge-late, a supervisor-died"
    assert scale_real.ends(log, ["d"]) == "d"
    assert scale_real.ends(log, []) == "none is missing"
