"""Each sample file, configured: the new text to the letter."""

from __future__ import annotations

import json

import pytest

from tests.nvc.engines.samples import CASES, CONFIG, before, config, engine, golden


@pytest.mark.parametrize("case", CASES)
def test_configured(case: str) -> None:
    assert golden(case, "after").read_bytes().decode() == engine(case).configure(before(case), config(case))


@pytest.mark.parametrize("case", CASES)
def test_configured_twice_is_configured_once(case: str) -> None:
    once = engine(case).configure(before(case), config(case))

    assert once == engine(case).configure(once, config(case))


@pytest.mark.parametrize("case", CASES)
def test_no_line_of_others_is_lost(case: str) -> None:
    """Every comment stays, and every line but those whose value was asked to change."""
    if case == "containerd-inline":
        return  # its tables are all on the one line that changes
    after = engine(case).configure(before(case), config(case).replace(default=False, cdi=False)).splitlines()
    lost = [line for line in before(case).splitlines() if line not in after and line + "," not in after]

    assert all("untime" in line or "hooks_dir" in line or "options" in line for line in lost), lost


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("docker")])
def test_docker_files_are_json_that_others_read(case: str) -> None:
    text = golden(case, "after").read_bytes().decode("utf-8-sig")

    assert {"path": CONFIG.path}.items() <= json.loads(text)["runtimes"]["nvidia"].items()
