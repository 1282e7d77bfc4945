"""What the agent has written down of its tenants, read again: also what is no record."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.agent.state import records
from nvc.agent.state.records import TenantRecord
from nvc.agent.thaw import thaw

GOOD = TenantRecord(2, "c2", "c2", 0, 0, 1.5)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "agent"
    records.prepare(str(made))
    records.save(str(made), GOOD)
    return made


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(b"{\x00\xff", "", id="no JSON"),
        pytest.param(b"[" * 70_000, "", id="deep, and longer than any"),
        pytest.param(b'{"number": 1}', "", id="a part"),
        pytest.param(
            b'{"number":7,"key":"c","container":"c","pid":0,"start_time":0,"since":0.0}', "of tenant 7", id="another's"
        ),
    ],
)
def test_a_damaged_record_is_told_once_and_kept(directory: Path, data: bytes, why: str) -> None:
    """It was told at every start, and a new tenant of its number took its place."""
    tenants = directory / "tenants"
    (tenants / "1.json").write_bytes(data)
    (tenants / "1.ledger").write_bytes(b"its ledger")
    (tenants / "1.channels").write_bytes(b"")

    found, (told,) = records.load(str(directory))

    assert [GOOD] == found
    assert told.startswith(f"{tenants}/1.json: ") and why in told
    aside = tenants / told.rpartition("set aside as ")[2]
    assert data == aside.read_bytes()
    (ledger,) = tenants.glob("damaged-1.ledger-*")
    assert b"its ledger" == ledger.read_bytes()
    assert ([GOOD], []) == records.load(str(directory))

    # Another tenant of this number comes, goes, or is damaged too: nothing of it is lost.
    records.save(str(directory), GOOD.replace(number=1))
    records.remove(str(directory), 1)
    (tenants / "1.json").write_bytes(b"again")
    records.load(str(directory))
    assert {data, b"again"} == {path.read_bytes() for path in tenants.glob("damaged-1.json-*")}
    assert 0 == thaw(str(directory), alone=False)


def test_a_directory_in_its_place_is_set_aside_too(directory: Path) -> None:
    (directory / "tenants/1.json").mkdir()

    assert "set aside" in records.load(str(directory))[1][0]
    assert ([GOOD], []) == records.load(str(directory))
