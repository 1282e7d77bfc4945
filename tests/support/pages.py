"""The commands on the engines' pages that start containers, as a reader copies them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_PAGES = Path(__file__).resolve().parents[2] / "docs/user/engines"


def runs(page: str) -> list[str]:
    """The lines of the blocks marked ``sh``, in the order of the page."""
    text = (_PAGES / f"{page}.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def options(line: str, program: str) -> tuple[list[str], list[str]]:
    """The options of ``PROGRAM run --rm OPTION... IMAGE [NAME] COMMAND...``, and the command."""
    words = shlex.split(line)
    assert words[:3] == [program, "run", "--rm"], line
    image = words.index("IMAGE")
    return words[3:image], [word for word in words[image + 1 :] if word != "NAME"]
