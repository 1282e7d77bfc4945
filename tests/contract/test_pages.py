"""Links and anchors of all Markdown lead somewhere; every block of commands is run by a test, or says why not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support import pages as engines
from tools.docs import hook, markdown

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packaging/**/*.md"))
)
#: Languages of blocks that a reader copies into a shell.
COMMANDS = ("", "sh", "bash", "console", "shell")
RUN = re.compile(r"<!-- run by (tests/[\w/]+\.py)::(test_\w+) -->")
NOT_RUN = re.compile(r"<!-- not run: .{10,} -->")
#: Blocks that have no such line yet: page -> how many, at most. None is to be added.
OWED = {"docs/user/suspend.md": 1}
#: Pages that are not for copying: records of runs, and what others' programs print.
RECORDS = ("docs/measured/engines.md", "docs/reference/")


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors(page: str) -> None:
    wrong = []
    for target in markdown.links(text(page)):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        found = (ROOT / page).parent / path if path else ROOT / page
        # A directory has no page on the site.
        there = found.is_file() or (found.is_dir() and ROOT / "docs" not in found.resolve().parents)
        if not there or ROOT not in found.resolve().parents:
            wrong.append(f"{target}: no such file")
        elif anchor and found.suffix == ".md" and anchor not in markdown.anchors(found.read_text(encoding="utf-8")):
            wrong.append(f"{target}: no such heading")
    assert not wrong


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(RECORDS)])
def test_blocks_of_commands_are_run_or_say_why_not(page: str) -> None:
    """The line before such a block names its test; other blocks have a language."""
    if page.startswith("docs/user/engines/"):
        return  # test_engine_pages.py
    for mark, block, before in markdown.fences(text(page)):
        if mark.partition(" ")[0] not in COMMANDS:
            continue
        run = RUN.fullmatch(before)
        assert run or NOT_RUN.fullmatch(before), (
            f"{page}: write `<!-- run by tests/...py::test_... -->` or `<!-- not run: why -->` on the line before this "
            f"block, or give it a language that is no shell's (text, yaml, ...):\n{block}"
        )
        if run:
            assert is_run(page, run[1], run[2]), f"{run[0]}: there is no such test, or its file does not read {page}"


def is_run(page: str, file: str, name: str) -> bool:
    path = ROOT / file
    if not path.is_file():
        return False
    source = path.read_text()
    reads = Path(page).name in source or (page == "README.md" and "import readme" in source)
    return reads and any(isinstance(one, ast.FunctionDef) and one.name == name for one in ast.parse(source).body)


def test_engines_pages_are_where_they_are_looked_for() -> None:
    assert {f"docs/user/engines/{page}.md" for page in engines.PAGES} <= set(PAGES)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [*hook.MOVED.values(), *(page.removeprefix("docs/") for page in PAGES if page not in hook.MOVED)]

    def walk(entry: object) -> list[str]:
        if isinstance(entry, dict):
            entry = list(entry.values())
        return [page for one in entry for page in walk(one)] if isinstance(entry, list) else [str(entry)]

    assert sorted(walk(hook.navigation(pages))) == sorted(pages)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("text\n- a\n- b", "text\n\n- a\n- b"),
        ("1. a\n\n       code\n\n2. b", "1. a\n\n        code\n\n2. b"),
        ("1. a\n\n   more\n   - b\n\nend", "1. a\n\n    more\n\n    - b\n\nend"),
        ("- a\n  b\n- c", "- a\n    b\n- c"),
        ("```\n- a\ntext\n- b\n```", "```\n- a\ntext\n- b\n```"),
        ("    code\n    - no item", "    code\n    - no item"),
        ("- a\n\n  ```\n  b\n   c\n  ```", "- a\n\n    ```\n    b\n     c\n    ```"),
    ],
)
def test_lists_as_commonmark_has_them(written: str, read: str) -> None:
    assert markdown.for_python_markdown(written) == read


@pytest.mark.parametrize(
    ("title", "anchor"),
    [
        ("`configure` through the agent (tests/x.py)", "configure-through-the-agent-testsxpy"),
        ("1.8 Neighbouring products", "18-neighbouring-products"),
        ("A - B", "a---b"),
        ("[link](to.md) and *more*", "link-and-more"),
    ],
)
def test_anchors_as_git_hosting_makes_them(title: str, anchor: str) -> None:
    assert markdown.slug(title) == anchor


def test_a_broken_link_is_seen() -> None:
    assert [*markdown.links("[a](b.md#c) `[no](x)`\n```\n[no](y)\n```\n![d](e.svg)")] == ["b.md#c", "e.svg"]
    assert markdown.anchors("# A b\n## A b\n```\n# no\n```\n") == {"a-b", "a-b-1"}
