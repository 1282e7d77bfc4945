"""What a check says, and what a check is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvc.record import Record

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

OK, NOTE, WARNING, ERROR = "ok", "note", "warning", "error"
#: From harmless to bad.
LEVELS = (OK, NOTE, WARNING, ERROR)


class Finding(Record):
    """level: one of LEVELS. what: what is so, in one line. why: why it matters. mend: the command that mends it.

    area, check and an empty ``why`` are filled in by the runner from the check's row.
    """

    level: str
    what: str
    mend: str = ""
    why: str = ""
    check: str = ""
    area: str = ""


def ok(what: str) -> Finding:
    """All is well; ``what`` says what was seen."""
    return Finding(OK, what)


def note(what: str, mend: str = "", why: str = "") -> Finding:
    """Good to know; nothing is wrong, or nobody can tell."""
    return Finding(NOTE, what, mend, why)


def warning(what: str, mend: str, why: str = "") -> Finding:
    """Some containers fail, or will later."""
    return Finding(WARNING, what, mend, why)


def error(what: str, mend: str, why: str = "") -> Finding:
    """Containers with GPUs cannot start, cannot compute, or are not safe."""
    return Finding(ERROR, what, mend, why)


Look = Callable[["Probe"], Iterator[Finding]]


@dataclass(frozen=True)
class Check:
    """A row of the table.

    name: unique, begins with what it is about. area: one of ``table.AREAS``. look: yields findings; nothing, when
    there is nothing to say. sees: what it looks at. why: why it matters when it speaks. covers: rows of the known
    complaints ("C1" ... "C28", docs/user/doctor.md). engine: the engine it is about, for ``--engine``. patience: how
    many times the time limit it may take.
    """

    name: str
    area: str
    look: Look
    sees: str
    why: str
    covers: tuple[str, ...] = ()
    engine: str = ""
    patience: int = 1


def worst(findings: list[Finding]) -> str:
    """The worst level; OK without findings."""
    return LEVELS[max((LEVELS.index(finding.level) for finding in findings), default=0)]
