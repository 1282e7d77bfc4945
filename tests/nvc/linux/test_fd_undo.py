"""nvc.linux.fd and nvc.base.undo: ownership and taking back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nvc.base.undo import Undo
from nvc.linux.fd import Fd, same_file


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError as error:
        assert error.errno == errno.EBADF
        return False
    return True


def test_context_closes_the_descriptor() -> None:
    with Fd(os.open("/", os.O_PATH), "/") as root:
        number = root.fileno()
        assert is_open(number)
    assert not is_open(number)
    assert root.closed


def test_forgotten_descriptor_is_closed() -> None:
    owner = Fd(os.open("/", os.O_PATH))
    number = owner.fileno()
    del owner
    assert not is_open(number)


def test_second_close_leaves_a_reused_number_alone() -> None:
    owner = Fd(os.open("/", os.O_PATH))
    owner.close()
    reused = os.open("/", os.O_PATH)
    owner.close()
    assert is_open(reused)
    os.close(reused)


def test_detach_hands_the_number_over() -> None:
    owner = Fd(os.open("/", os.O_PATH))
    number = owner.detach()
    del owner
    assert is_open(number)
    os.close(number)


def test_closed_descriptor_is_refused_by_name() -> None:
    owner = Fd(os.open("/", os.O_PATH), "/some/thing")
    owner.close()
    with pytest.raises(ValueError, match="/some/thing"):
        owner.fileno()
    with pytest.raises(ValueError, match="/some/thing"):
        owner.detach()


def test_negative_number_is_refused() -> None:
    with pytest.raises(ValueError):
        Fd(-1)


def test_text_shows_number_and_path() -> None:
    with Fd(os.open("/", os.O_PATH), "/x") as owner:
        assert str(owner) == f"{owner.fileno()} (/x)"


def test_duplicate_is_the_same_file_and_not_inherited() -> None:
    with Fd(os.open("/", os.O_PATH)) as one, one.duplicate() as other:
        assert one.fileno() != other.fileno()
        assert same_file(one, other)
        assert not os.get_inheritable(other.fileno())


def test_same_file_tells_files_apart(tmp_path: Path) -> None:
    with Fd(os.open("/", os.O_PATH)) as one, Fd(os.open(tmp_path, os.O_PATH)) as other:
        assert not same_file(one, other)


def test_rollback_runs_backwards_and_once() -> None:
    seen: list[int] = []
    undo = Undo()
    undo.push(seen.append, 1)
    undo.push(seen.append, 2)
    assert undo.rollback() == []
    assert undo.rollback() == []
    assert seen == [2, 1]


def test_failing_step_does_not_stop_the_others() -> None:
    seen: list[int] = []
    undo = Undo()
    undo.push(seen.append, 1)
    undo.push(int, "x")
    undo.push(seen.append, 2)
    (error,) = undo.rollback()
    assert isinstance(error, ValueError)
    assert undo.errors == [error]
    assert seen == [2, 1]


def test_commit_keeps_the_changes() -> None:
    seen: list[int] = []
    with Undo() as undo:
        undo.push(seen.append, 1)
        undo.commit()
    assert seen == []


@pytest.mark.parametrize("fails", [False, True], ids=["left", "raised"])
def test_context_without_commit_rolls_back(fails: bool) -> None:
    seen: list[int] = []
    try:
        with Undo() as undo:
            undo.push(seen.append, 1)
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert seen == [1]


def test_hand_over_moves_the_steps() -> None:
    seen: list[int] = []
    outer = Undo()
    outer.push(seen.append, 1)
    with Undo() as inner:
        inner.push(seen.append, 2)
        inner.hand_over(outer)
    assert seen == []
    outer.rollback()
    assert seen == [2, 1]
