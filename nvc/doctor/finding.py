"""Checks, and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvc.base.record import Record

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

SKIPPED, OK, NOTE, WARNING, ERROR = "skipped", "ok", "note", "warning", "error"
#: From harmless to bad.
LEVELS = (SKIPPED, OK, NOTE, WARNING, ERROR)


class Finding(Record):
    """level: one of LEVELS. what: the fact, in one line. why: why it matters. fix: the command that fixes it.

    area, check and an empty ``why`` are filled in by the runner from the check's row.
    """

    level: str
    what: str
    fix: str = ""
    why: str = ""
    check: str = ""
    area: str = ""


def ok(what: str) -> Finding:
    """All is well; ``what`` says what was checked."""
    return Finding(OK, what)


def skipped(what: str) -> Finding:
    """Nothing was checked: there is nothing of that kind here."""
    return Finding(SKIPPED, what)


def note(what: str, fix: str = "", why: str = "") -> Finding:
    """Good to know; nothing is wrong, or it cannot be determined."""
    return Finding(NOTE, what, fix, why)


def warning(what: str, fix: str, why: str = "") -> Finding:
    """Some containers fail, or will later."""
    return Finding(WARNING, what, fix, why)


def error(what: str, fix: str, why: str = "") -> Finding:
    """Containers with GPUs cannot start, cannot compute, or are not safe."""
    return Finding(ERROR, what, fix, why)


Look = Callable[["Probe"], Iterator[Finding]]


@dataclass(frozen=True)
class Check:
    """A row of the table.

    name: unique, begins with what it is about. area: one of ``table.AREAS``. look: yields findings; none, when
    there is nothing to report. sees: what it looks at. why: why its findings matter. covers: rows of the known
    complaints ("C1" ... "C28", docs/reference/doctor-checks.md). engine: it is about, for ``--engine``. timeout_factor:
    times the time limit.
    """

    name: str
    area: str
    look: Look
    sees: str
    why: str
    covers: tuple[str, ...] = ()
    engine: str = ""
    timeout_factor: int = 1


def worst(findings: list[Finding]) -> str:
    """The worst level; OK without findings, or where nothing was checked."""
    return LEVELS[max([LEVELS.index(OK), *(LEVELS.index(finding.level) for finding in findings)])]
