"""What the agent says at its start of ordinary memory in video memory."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from typing import Any

import pytest

from nvc.agent import pageable
from nvc.agent.journal import Journal
from nvc.base.errors import InputError
from nvc.bindings.uvm import ATS, HMM, OFF
from nvc.driver.pageable import ADVICE


def told(ask: Callable[[], str], seconds: float = 20.0) -> list[dict[str, Any]]:
    journal, lines = Journal(-1), []
    journal.listen(lines.append)
    pageable.tell(ask, journal, seconds)
    return lines


def failing(error: Exception) -> Callable[[], str]:
    def ask() -> str:
        raise error

    return ask


@pytest.mark.parametrize("answer", [HMM, ATS])
def test_one_line_with_the_remedy(answer: str) -> None:
    (line,) = told(lambda: answer)

    assert line["event"] == "warning"
    assert (line["message"], line["hint"]) == (ADVICE[answer].what, ADVICE[answer].fix)


def test_nothing_where_memory_stays_where_it_is() -> None:
    assert told(lambda: OFF) == []


def test_nothing_without_the_module_or_its_node() -> None:
    assert told(failing(FileNotFoundError(errno.ENOENT, "none", "/dev/nvidia-uvm"))) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EIO, "Input/output error", "/dev/nvidia-uvm"), "/dev/nvidia-uvm"),
        (InputError("this is not a machine"), "not a machine"),
        (RuntimeError("a mistake"), "no answer"),
    ],
)
def test_a_driver_that_cannot_be_asked_is_reported(error: Exception, words: str) -> None:
    (line,) = told(failing(error))

    assert line["event"] == "warning"
    assert "is not known" in line["message"]
    assert words in line["message"]


def test_a_driver_that_never_answers_is_not_waited_for() -> None:
    def ask() -> str:
        select.select([], [], [])
        return HMM

    (line,) = told(ask, seconds=0.05)

    assert "no answer in time" in line["message"]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
