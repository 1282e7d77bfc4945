"""The commands on the engines' pages that start containers, as a reader copies them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_PAGES = Path(__file__).resolve().parents[2] / "docs/user/engines"
PAGES = tuple(sorted(path.stem for path in _PAGES.glob("*.md")))
#: What runs the blocks of a page, by their mark (and the file that a block is, where the page names it): a test.
RUN_BY = {
    **{(page, ""): "test_pages.py::test_the_commands_of_a_page" for page in ("containerd", "crio", "docker", "podman")},
    ("containerd", "sh"): "test_newer.py::test_the_lines_of_containerds_page",
    ("docker", "sh"): "test_newer.py::test_the_lines_of_dockers_page",
    ("podman", "sh"): "test_newer.py::test_the_lines_of_podmans_page",
    ("rootless", ""): "test_pages.py::test_the_commands_of_a_page",
    ("rootless", "sh"): "test_newer.py::test_the_lines_of_the_page_on_rootless_engines",
    ("rootless", "json"): "test_pages.py::test_the_hook_of_the_page_on_rootless_engines",
    ("lxc", ""): "test_lxc.py::test_the_lines_of_the_page",
    ("slurm", ""): "test_slurm.py::slurm",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """The page's fenced blocks: mark, text."""
    text = (_PAGES / f"{page}.md").read_text()
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def runs(page: str) -> list[str]:
    """The lines of the blocks marked ``sh``, in the order of the page: they start containers."""
    return [line for mark, text in blocks(page) if mark == "sh" for line in text.splitlines()]


def after(page: str, title: str) -> str:
    """The block that follows a file's name on the page."""
    text = (_PAGES / f"{page}.md").read_text()
    found = re.search(rf"^`{re.escape(title)}`[^\n]*\n\n```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no {title}"
    return found[1]


def options(line: str, program: str) -> tuple[list[str], list[str]]:
    """The options of ``PROGRAM run --rm OPTION... IMAGE [NAME] COMMAND...``, and the command."""
    words = shlex.split(line)
    assert words[:3] == [program, "run", "--rm"], line
    image = words.index("IMAGE")
    return words[3:image], [word for word in words[image + 1 :] if word != "NAME"]
