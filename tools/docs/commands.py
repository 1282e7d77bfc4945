"""The command reference: the manual pages that packaging/manual.py writes, as Markdown.

The few requests that it uses are read; another one is an error, so that nothing of a page is lost.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tools.docs.made import COMMANDS, ROOT

_SIGNS = {"e": "\\", "-": "-", "&": "", "(aq": "'", "(ga": "`", "(ha": "^", "(ti": "~"}
#: What Markdown would read as its own.
_MARKS = re.compile(r"([\\`*_<>\[\]|#])")


def plain(text: str) -> str:
    """A line of roff as it is printed, fonts left out."""
    text = re.sub(r"\\f[BRIP]", "", text)
    return re.sub(r"\\(\((?:aq|ga|ha|ti)|[e&-])", lambda found: _SIGNS[found[1]], text)


def prose(text: str) -> str:
    """A line of roff as Markdown: bold words are code."""
    parts = re.split(r"\\fB(.*?)\\fR", text)
    return "".join(code(part) if odd % 2 else _MARKS.sub(r"\\\1", plain(part)) for odd, part in enumerate(parts))


def code(text: str) -> str:
    words = plain(text).strip()
    around = "``" if "`" in words else "`"
    return f"{around}{words}{around}" if words else ""


def convert(page: str) -> tuple[str, str]:
    """(name as in ``man``, Markdown) of a page."""
    lines = iter(page.splitlines())
    out: list[str] = []
    name = ""
    heading = ""
    depth = 0
    for line in lines:
        request, _, rest = line.partition(" ")
        if request == ".TH":
            title, section = rest.split()[:2]
            name = f"{title.lower()}({section})"
            out.append(f"# {name}\n")
        elif request == ".SH":
            heading = plain(rest)
            if heading not in ("NAME", "SYNOPSIS"):
                out.append(f"\n## {heading.capitalize() if heading.isupper() else heading}\n")
        elif request == ".PP":
            out.append("")
        elif request == ".RS":
            depth += 1 if not rest else 0
        elif request == ".RE":
            depth = max(0, depth - 1)
        elif request == ".TP":
            indent = "    " * depth
            out += [f"{indent}- {prose(next(lines))}: {prose(next(lines))}"]
        elif request == ".nf":
            out += ["```sh" if heading == "EXAMPLES" else "```text", *map(plain, _until(lines, ".fi")), "```"]
        elif request.startswith(".") and request != ".sp":
            raise ValueError(f"{name}: the request {request} is not known")
        elif heading == "SYNOPSIS":
            out.append(f"    {plain(line)}")
        else:
            out.append(prose(line))
    return name, re.sub(r"\n{3,}", "\n\n", "\n".join(out)) + "\n"


def _until(lines: Iterable[str], end: str) -> list[str]:
    found: list[str] = []
    for line in lines:
        if line == end:
            return found
        found.append("" if line == ".sp" else line)
    raise ValueError(f"no {end}")


def main() -> None:
    pages = ROOT / "build/docs/man"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "packaging/manual.py", str(pages)], cwd=ROOT, env=env, check=True)
    for old in COMMANDS.glob("*.md"):
        old.unlink()
    COMMANDS.mkdir(parents=True, exist_ok=True)
    for path in sorted(pages.glob("man*/*")):
        text = path.read_text(encoding="utf-8")
        if not text.startswith(".so "):
            name, found = convert(text)
            Path(COMMANDS, f"{name.partition('(')[0]}.md").write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
