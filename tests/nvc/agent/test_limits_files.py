"""Limits files: the kernel reports changes, and nothing is looked at while there are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.agent.limits_files import LimitsFiles
from nvc.agent.state.records import TenantRecord
from nvc.agent.tenant import Tenant
from nvc.linux import const
from nvc.linux.inotify import Inotify
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu

LIMITS = Limits((ResolvedGpu("GPU-00000000-0000-0000-0000-000000000001", -1),))


def made(place: Path, number: int, group: str = "") -> Tenant:
    key = f"c{number}"
    (place / key).mkdir(exist_ok=True)
    (place / key / "limits").write_bytes(b"first")
    return Tenant(TenantRecord(number, key, key, os.getpid(), 1, 1.0, group=group), LIMITS)


@pytest.fixture
def files(tmp_path: Path) -> LimitsFiles:
    return LimitsFiles(str(tmp_path))


def changed(path: Path, text: bytes) -> None:
    with path.open("r+b") as file:
        file.write(text)


def test_a_change_is_told_once(tmp_path: Path, files: LimitsFiles) -> None:
    for number in (1, 2):
        files.add(made(tmp_path, number))
    assert files.take() == {1, 2}, "what it says was read before it was watched"
    assert files.take() == set()
    changed(tmp_path / "c2/limits", b"other")
    assert files.take() == {2} and files.take() == set()
    files.close()


@pytest.mark.parametrize("count", [10, 200])
def test_no_file_is_looked_at_while_none_changes(
    tmp_path: Path, files: LimitsFiles, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was, four times a second: 500 of them took 1 % of a core."""
    tenants = [made(tmp_path, number) for number in range(1, count + 1)]
    for tenant in tenants:
        files.add(tenant)
    files.take()
    looked = []
    monkeypatch.setattr(Tenant, "is_file_changed", lambda tenant, shares: looked.append(tenant.number))
    for _ in range(3):
        assert files.take() == set()
    changed(tmp_path / "c7/limits", b"other")
    assert files.take() == {7} and looked == []
    files.close()


def test_a_file_in_the_place_of_another_one_counts(tmp_path: Path, files: LimitsFiles) -> None:
    files.add(made(tmp_path, 1))
    files.take()
    (tmp_path / "c1/new").write_bytes(b"another")
    os.rename(tmp_path / "c1/new", tmp_path / "c1/limits")
    assert files.take() == {1}
    files.take()
    changed(tmp_path / "c1/limits", b"changed")
    assert files.take() == {1}
    files.close()


def test_a_file_in_the_place_of_another_one_counts_where_events_were_lost(
    tmp_path: Path, files: LimitsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        files.add(made(tmp_path, number))
    files.take()
    (tmp_path / "c1/new").write_bytes(b"another")
    os.rename(tmp_path / "c1/new", tmp_path / "c1/limits")
    read = Inotify.read

    def full(one: Inotify) -> dict[int, int]:
        read(one)
        return {const.NO_WATCH: 0x4000}

    with monkeypatch.context() as patched:
        patched.setattr(Inotify, "read", full)
        assert files.take() == {1, 2}, "of any of them"
    files.take()
    for number in (1, 2):
        changed(tmp_path / f"c{number}/limits", b"changed")
        assert files.take() == {number} and files.take() == set()
    files.close()


def test_a_file_that_comes_later_is_found(tmp_path: Path, files: LimitsFiles) -> None:
    tenant = made(tmp_path, 1)
    (tmp_path / "c1/limits").unlink()
    files.add(tenant)
    assert files.take() == {1} and files.take() == {1}, "it is missing"
    (tmp_path / "c1/limits").write_bytes(b"late")
    assert files.take() == {1} and files.take() == set()
    changed(tmp_path / "c1/limits", b"later")
    assert files.take() == {1}
    files.close()


def test_an_earlier_container_of_the_name_takes_no_change_away(tmp_path: Path, files: LimitsFiles) -> None:
    before, after = made(tmp_path, 1), made(tmp_path, 1)
    after.number = 2
    files.add(before)
    files.add(after)
    files.take()
    files.drop(before)
    changed(tmp_path / "c1/limits", b"other")
    assert files.take() == {2}
    files.drop(after)
    changed(tmp_path / "c1/limits", b"again")
    assert files.take() == set()
    files.close()


def test_groups_and_what_cannot_be_watched_are_looked_at(
    tmp_path: Path, files: LimitsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "no room")

    files.add(made(tmp_path, 1, group="g"))
    monkeypatch.setattr("nvc.linux.syscalls.inotify_add_watch", full)
    files.add(made(tmp_path, 2))
    files.take()
    for number in (1, 2):
        os.utime(tmp_path / f"c{number}/limits", ns=(1, number))
    assert files.take() == {1, 2}
    files.close()
