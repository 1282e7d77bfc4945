"""Uids of guards that an account or a user namespace of the host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.agent.users import check
from nvc.base.errors import InitializationError
from nvc.guard.supervisors import USER_COUNT, USERS

LAST = USERS + USER_COUNT


def host(tmp_path: Path, name: str, text: str) -> str:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / name).write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("passwd", f"eve:x:{USERS}:100::/home/eve:/bin/sh", f"'eve' has ids {USERS} to {USERS}"),
        ("passwd", f"eve:x:{LAST}:100::/home/eve:/bin/sh", f"guards have {USERS} to {LAST}"),
        ("group", f"staff:x:{USERS + 5}:", "'staff'"),
        ("subuid", "eve:1899000000:1000001", "has ids 1899000000 to 1900000000"),
        ("subuid", "100000:65536:4000000000", "'100000'"),
        ("subgid", f"eve:{LAST}:65536", "/etc/subgid"),
    ],
    ids=["account", "prober", "group", "end of a range", "range around", "range of gids"],
)
def test_ids_that_are_taken_are_refused(tmp_path: Path, name: str, line: str, said: str) -> None:
    with pytest.raises(InitializationError) as raised:
        check(USERS, host(tmp_path, name, f"root:x:0:0::/root:/bin/sh\n{line}\n"))
    assert said in raised.value.message
    assert "first-uid" in raised.value.hint


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("passwd", f"eve:x:{USERS - 1}:{USERS}::/home/eve:/bin/sh"),
        ("passwd", "+::::::"),
        ("passwd", ""),
        ("passwd", f"eve:x:-{USERS}:0::/:"),
        ("group", f"staff:x:{LAST + 1}:"),
        ("subuid", f"eve:{LAST + 1}:65536"),
        ("subuid", f"eve:{USERS}:0"),
        ("subuid", f"eve:{USERS}"),
        ("shadow", f"eve:{USERS}:65536"),
    ],
)
def test_others_are_not(tmp_path: Path, name: str, line: str) -> None:
    check(USERS, host(tmp_path, name, f"{line}\n"))


def test_other_ids_can_be_chosen(tmp_path: Path) -> None:
    root = host(tmp_path, "subuid", f"eve:{USERS}:65536\n")
    check(USERS + 65536, root)
    with pytest.raises(InitializationError):
        check(USERS + 65535, root)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "etc" / "passwd").mkdir(parents=True)
    with pytest.raises(InitializationError, match="/etc/passwd: "):
        check(USERS, str(tmp_path))
