"""docs/glossary.md has the reasons, log events and columns that the programs print, and no name is a private word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nvc.agent.metrics.rows import ROWS
from nvc.bindings.reasons import REASONS
from nvc.cli.share.text import HEADINGS
from nvc.cli.top.text import COLUMNS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/glossary.md").read_text()


def rows(title: str) -> Iterator[tuple[str, ...]]:
    """The cells of each row of the table below a heading, without the heading's row."""
    section = TEXT.partition(f"\n### {title}\n")[2].partition("\n##")[0]
    for number, line in enumerate(found for found in section.splitlines() if found.startswith("|")):
        if number > 1:
            yield tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))


def names(title: str) -> list[str]:
    found = [*rows(title)]
    assert all(len(cells) == 2 and all(cells) for cells in found), "each name has a meaning"
    return [name for name, _ in found]


def constants(node: ast.expr) -> Iterator[str]:
    """The texts that an argument can have. A name that is only passed on has none."""
    if isinstance(node, ast.IfExp):
        yield from (*constants(node.body), *constants(node.orelse))
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        assert isinstance(node, ast.Name) and node.id == "event", ast.unparse(node)


def is_journal(node: ast.expr) -> bool:
    return (node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")).lstrip("_") == "journal"


def native_events() -> Iterator[str]:
    """What monitors and acceptors write beside the agent's journal."""
    for path in (ROOT / "native/supervisor").glob("*.c"):
        for argument in re.findall(r"\b(?:monitor_log|monitor_end_container) \(self, ([^,)]+)", path.read_text()):
            if argument != "event":  # passed on
                assert argument.startswith('"'), argument
                yield argument.strip('"')


def events() -> Iterator[str]:
    """What ``journal.write`` is called with, and the events that are written past it."""
    yield from native_events()
    for path in (ROOT / "nvc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "write":
                if is_journal(node.func.value):
                    yield from constants(node.args[0])
            elif isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield from constants(value)


def private(lines: Iterable[str]) -> set[str]:
    """The words of the columns "not", in small letters; of phrases, none: no name is a phrase."""
    cells = [line.split("|") for line in lines]
    terms = ",".join(row[3] for row in cells if len(row) == 5 and row[3].strip() not in ("not", "---")).split(",")
    return {term.strip().strip("`").lower() for term in terms if term.strip() and " " not in term.strip()}


def test_reasons_are_those_of_the_guard() -> None:
    assert [*REASONS] == names("Reasons")


def test_log_events_are_those_that_are_written() -> None:
    listed = names("Log events")
    assert len(listed) == len(set(listed))
    assert {*events()} == {*listed}


def test_lines_of_monitors_are_those_that_the_glossary_names() -> None:
    named = TEXT.partition("Lines of monitors and acceptors (")[2].partition(")")[0]
    assert {*re.findall(r"`([a-z-]+)`", named)} - {"listen"} == {*native_events()}


def test_columns_are_those_of_top_and_share_ls() -> None:
    assert {*COLUMNS} == {*names("Columns of nvc-py top")}
    assert [*HEADINGS] == names("Columns of nvc-py share ls")


def test_no_name_in_output_is_a_private_word() -> None:
    words = private(TEXT.splitlines())
    assert {"truth", "wished", "got_ratio", "by"} <= words, "the columns are read"
    words |= {part for word in words for part in word.split("_") if word.endswith("_ratio") and part != "ratio"}
    metrics = [row.name for row in ROWS]
    for name in (*metrics, *REASONS, *events(), *COLUMNS, *HEADINGS):
        parts = {name.lower(), *re.split(r"[-_/]", name.lower())}
        assert not parts & words, name
