"""Reports: text by area, and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from nvc import __version__
from nvc.doctor.finding import ERROR, LEVELS, NOTE, OK, SKIPPED, WARNING, Finding, worst

#: Of the JSON; changes when a key is renamed or taken away.
SCHEMA = 1
#: Level -> exit code. 1 is for every command that could not do its work.
EXIT_CODES = {SKIPPED: 0, OK: 0, NOTE: 0, WARNING: 2, ERROR: 3}
_COLOURS = {SKIPPED: "2", OK: "32", NOTE: "36", WARNING: "33", ERROR: "1;31"}
_WIDTH = max(map(len, LEVELS))
_INDENT = " " * (_WIDTH + 4)


def as_json(findings: list[Finding], *, simulated: str, problems: bool = False) -> str:
    """One object: schema, program, simulated, level, counts, findings. problems: show warnings and errors only."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "program": f"nvc-py {__version__}",
        "simulated": simulated,
        "level": worst(findings),
        "counts": counts(findings),
        "findings": [
            {key: getattr(finding, key) for key in ("level", "area", "check", "what", "why", "fix")}
            for finding in _shown(findings, problems)
        ],
    }
    return json.dumps(data, indent=2) + "\n"


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    found = dict.fromkeys(LEVELS, 0)
    for finding in findings:
        found[finding.level] += 1
    return found


def as_text(findings: list[Finding], *, colour: bool, problems: bool = False) -> str:
    """A line for every finding, below its area; why and fix below those that have them."""
    lines: list[str] = []
    area = ""
    for finding in _shown(findings, problems):
        if finding.area != area:
            area = finding.area
            lines += ["", area] if lines else [area]
        lines += _lines(finding, colour=colour)
    return "\n".join([*lines, *([""] if lines else []), summary(findings), ""])


def _shown(findings: list[Finding], problems: bool) -> list[Finding]:
    return [finding for finding in findings if not problems or finding.level in (WARNING, ERROR)]


def summary(findings: list[Finding]) -> str:
    number = counts(findings)
    problems = [
        f"{number[level]} {level}{'s' if number[level] > 1 else ''}" for level in (ERROR, WARNING) if number[level]
    ]
    text = ", ".join(problems) or "nothing is wrong"
    more = f", {number[SKIPPED]} skipped" if number[SKIPPED] else ""
    return f"{text}; {number[NOTE]} note{'' if number[NOTE] == 1 else 's'}, {number[OK]} ok{more}"


def _lines(finding: Finding, *, colour: bool) -> Iterable[str]:
    level = f"{finding.level:{_WIDTH}}"
    if colour:
        level = f"\x1b[{_COLOURS[finding.level]}m{level}\x1b[0m"
    yield f"  {level}  {finding.check}: {visible(finding.what)}"
    if finding.level in (WARNING, ERROR) and finding.why:
        yield f"{_INDENT}why:  {visible(finding.why)}"
    if finding.fix:
        yield f"{_INDENT}fix:  {visible(finding.fix)}"


def visible(text: str) -> str:
    """With control characters escaped: file names may contain them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def wants_colour(descriptor: int) -> bool:
    """Only on a terminal, and not with NO_COLOR (https://no-color.org)."""
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
