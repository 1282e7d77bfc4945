"""nvc.linux.devices_v1 on the real devices hierarchy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvc.base.errors import MountError
from nvc.base.undo import Undo
from nvc.linux import cgroup, devices_v1
from tests.nvc.linux import devices
from tests.nvc.linux.devices import NODES, allowed

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not (devices.V1 / "devices.list").exists(), reason="no cgroup v1 devices hierarchy"),
]
RULES = [NODES["zero"], NODES["random"]]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A cgroup as a runtime leaves it: all denied but null."""
    devices.make_nodes(tmp_path)
    with devices.cgroup(devices.V1, "v1") as path:
        (path / "devices.deny").write_text("a")
        (path / "devices.allow").write_text("c 1:3 rwm")
        yield path


def listed(group: Path) -> list[str]:
    return (group / "devices.list").read_text().splitlines()


def test_selected_nodes_open_and_others_do_not(group: Path, tmp_path: Path) -> None:
    assert allowed(group, tmp_path) == "null"
    with cgroup.open_directory(str(group)) as directory, Undo() as undo:
        assert cgroup.allow(1, directory, RULES, undo)
        assert allowed(group, tmp_path) == "null zero random"
        assert listed(group) == ["c 1:3 rwm", "c 1:5 rw", "c 1:8 rw"]
        assert not cgroup.allow(1, directory, RULES, undo)
    assert undo.errors == []
    assert listed(group) == ["c 1:3 rwm"]


@pytest.mark.parametrize(
    ("before", "during"),
    [
        pytest.param("c 1:5 r", "c 1:5 rw", id="read"),
        pytest.param("c 1:5 m", "c 1:5 rwm", id="mknod"),
        pytest.param("c 1:5 rwm", "c 1:5 rwm", id="everything"),
    ],
)
def test_undo_denies_only_what_was_not_allowed(before: str, during: str, group: Path) -> None:
    (group / "devices.allow").write_text(before)
    with cgroup.open_directory(str(group)) as directory, Undo() as undo:
        cgroup.allow(1, directory, [NODES["zero"]], undo)
        assert listed(group) == ["c 1:3 rwm", during]
    assert undo.errors == []
    assert listed(group) == ["c 1:3 rwm", before]


@pytest.mark.parametrize("wildcard", ["c 1:* rw", "c *:* rwm", "c *:5 rw"])
def test_wildcard_that_covers_the_node_is_enough(wildcard: str, group: Path) -> None:
    (group / "devices.allow").write_text(wildcard)
    before = listed(group)
    undo = Undo()
    with cgroup.open_directory(str(group)) as directory:
        assert not cgroup.allow(1, directory, [NODES["zero"]], undo)
    assert before == listed(group)
    assert len(undo) == 0


@pytest.mark.parametrize("other", ["c 1:* r", "b *:* rwm", "c *:* m"])
def test_entry_that_does_not_cover_the_node_is_not(other: str, group: Path, tmp_path: Path) -> None:
    (group / "devices.allow").write_text(other)
    before = listed(group)
    with cgroup.open_directory(str(group)) as directory, Undo() as undo:
        assert cgroup.allow(1, directory, [NODES["zero"]], undo)
        assert "zero" in allowed(group, tmp_path)
    assert before == listed(group)


def test_exception_of_a_cgroup_that_allows_all_is_lifted(tmp_path: Path) -> None:
    devices.make_nodes(tmp_path)
    with devices.cgroup(devices.V1, "all") as group:
        (group / "devices.deny").write_text("c 1:5 rwm")
        assert listed(group) == ["a *:* rwm"]
        assert "zero" not in allowed(group, tmp_path)
        with cgroup.open_directory(str(group)) as directory, Undo() as undo:
            cgroup.allow(1, directory, [NODES["zero"]], undo)
            assert "zero" in allowed(group, tmp_path)
        assert undo.errors == []


def test_refusal_of_the_parent_leaves_nothing(group: Path) -> None:
    (group / "devices.allow").write_text("c 1:5 rw")
    inner = group / "inner"
    inner.mkdir()
    (inner / "devices.deny").write_text("a")
    with cgroup.open_directory(str(inner)) as directory, pytest.raises(MountError, match="c 1:8") as caught:
        cgroup.allow(1, directory, RULES, Undo())
    assert "parent cgroup" in caught.value.hint
    assert listed(inner) == []


def test_missing_files_are_an_error_with_the_place(tmp_path: Path) -> None:
    with cgroup.open_directory(str(tmp_path)) as directory, pytest.raises(MountError, match=r"devices\.list"):
        cgroup.allow(1, directory, RULES, Undo())


def test_list_of_another_form_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "devices.list").write_text("nonsense\n")
    with cgroup.open_directory(str(tmp_path)) as directory, pytest.raises(MountError, match="bad message"):
        cgroup.allow(1, directory, RULES, Undo())
    with pytest.raises(ValueError):
        devices_v1.parse("c 1 rw")
