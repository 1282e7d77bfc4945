"""What the agent has written down of its tenants, read again: also what is no record."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.agent.state import records
from nvc.agent.state.records import TenantRecord

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
    """It was reported at every start, and a new tenant of its number took its place."""
    tenants = directory / "tenants"
    (tenants / "1.json").write_bytes(data)
    (tenants / "1").mkdir()
    (tenants / "1/plan").write_bytes(b"its plan")

    found, (told,) = records.load(str(directory))

    assert [GOOD] == found
    assert told.startswith(f"{tenants}/1.json: ") and why in told
    aside = tenants / told.rpartition("set aside as ")[2]
    assert data == aside.read_bytes()
    assert b"its plan" == (tenants / "1/plan").read_bytes(), "its monitor goes on"
    assert ([GOOD], []) == records.load(str(directory))

    # Another tenant of this number comes, goes, or is damaged too: nothing of it is lost.
    records.save(str(directory), GOOD.replace(number=1))
    records.remove(str(directory), GOOD.replace(number=1))
    (tenants / "1.json").write_bytes(b"again")
    records.load(str(directory))
    assert {data, b"again"} == {path.read_bytes() for path in tenants.glob("damaged-1.json-*")}


def test_a_directory_in_its_place_is_set_aside_too(directory: Path) -> None:
    (directory / "tenants/1.json").mkdir()

    assert "set aside" in records.load(str(directory))[1][0]
    assert ([GOOD], []) == records.load(str(directory))


def test_everything_of_a_tenant_goes_and_nothing_of_another(directory: Path) -> None:
    other = GOOD.replace(number=1, container="c1")
    for record in (GOOD, other):
        records.save(str(directory), record)
        place = Path(records.path(str(directory), record.number))
        place.mkdir()
        for name in ("plan", "monitor", "cgroup"):
            (place / name).touch()
        records.link(str(directory), record.number, record.container)
    assert (directory / "containers/c2/plan").samefile(directory / "tenants/2/plan")

    records.remove(str(directory), GOOD)

    assert {"1", "1.json"} == {path.name for path in (directory / "tenants").iterdir()}
    assert ["c1"] == [path.name for path in (directory / "containers").iterdir()]
    assert (directory / "containers/c1/plan").exists()


def test_a_container_of_the_same_name_is_found_in_the_place_of_the_one_before(directory: Path) -> None:
    for number in (2, 3):
        records.link(str(directory), number, GOOD.container)
    assert "../tenants/3" == str((directory / "containers/c2").readlink())
    records.remove(str(directory), GOOD)
    assert "../tenants/3" == str((directory / "containers/c2").readlink())


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "/etc"])
def test_a_name_that_is_none_of_a_file_is_not_linked(directory: Path, name: str) -> None:
    records.link(str(directory), 2, name)
    assert [] == list((directory / "containers").iterdir())
