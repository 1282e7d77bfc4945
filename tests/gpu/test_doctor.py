"""``nvc-py doctor`` on a machine with a working driver: every check speaks, none crashes, and no error is made up."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from nvc.doctor import table
from nvc.doctor.report import EXIT_CODES
from tests.support.bed import Bed
from tests.support.gpuhost import smi

pytestmark = pytest.mark.gpu

#: How the runner tells of a check that did not do its work.
FAILED = ("the check failed", "did not end within", "ended its process", "cannot look at", "cannot be checked")
#: What other suites prove to work on this machine, so that a problem found here would be false.
PROVEN = ("driver", "libraries", "nodes", "mig")
UNPRIVILEGED = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def ask(bed: Bed, *options: str, before: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
    result = bed.call(*before, bed.commands.nvc, "doctor", "--json", *options)
    assert result.err == ""
    return result.code, json.loads(result.out)


@pytest.mark.parametrize("before", [(), UNPRIVILEGED], ids=["root", "unprivileged"])
def test_every_check_does_its_work(bed: Bed, before: Sequence[str]) -> None:
    code, data = ask(bed, before=before)

    assert (data["schema"], data["simulated"]) == (1, "")
    assert code == EXIT_CODES[data["level"]]
    assert {row["check"] for row in data["findings"]} == {check.name for check in table.CHECKS}
    assert [row for row in data["findings"] if any(words in row["what"] for words in FAILED)] == []
    assert sum(data["counts"].values()) == len(data["findings"])
    for row in data["findings"]:
        assert row["level"] in ("ok", "skipped") or row["why"], row


def test_there_is_no_error_on_a_machine_where_containers_have_gpus(bed: Bed) -> None:
    code, data = ask(bed, "--problems")

    assert [row for row in data["findings"] if row["level"] == "error"] == []
    assert code == EXIT_CODES["warning" if data["findings"] else "ok"]


def test_the_driver_is_seen(bed: Bed) -> None:
    _, data = ask(bed, *(f"--only={area}" for area in PROVEN))

    well = {row["check"]: row["what"] for row in data["findings"] if row["level"] == "ok"}
    version = smi("--query-gpu=driver_version", "--format=csv,noheader").split()[0]
    assert version in well["driver-loaded"]
    assert {"driver-gpus", "driver-nvml", "ldcache-readable", "libraries-version", "libraries-needed"} <= set(well)
    assert {"nodes-present", "nodes-numbers", "nodes-permissions"} <= set(well)
    (memory,) = [row for row in data["findings"] if row["check"] == "driver-memory"]
    assert memory["level"] == "warning" or "moves no pageable system memory" in memory["what"], "the driver answers"


def test_text_and_json_agree(bed: Bed) -> None:
    code, data = ask(bed)

    text = bed.call(bed.commands.nvc, "doctor")

    assert (text.code, text.err) == (code, "")
    for row in data["findings"]:
        assert f"{row['check']}: {row['what']}" in text.out


def test_it_changes_nothing(bed: Bed) -> None:
    before = {place: sorted(os.listdir(place)) for place in ("/dev", "/run", "/etc") if os.path.isdir(place)}

    ask(bed)

    assert {place: sorted(os.listdir(place)) for place in before} == before
