"""Pages as text: fences, diagrams, links, anchors as Git hosting has them, and what Python-Markdown reads otherwise."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

#: How mermaid draws: narrow, because a page's column is.
LOOK = {
    "theme": "neutral",
    "fontFamily": "sans-serif",
    "sequence": {"mirrorActors": False, "actorMargin": 12, "width": 120, "wrap": True, "messageMargin": 28},
    "flowchart": {"rankSpacing": 45, "nodeSpacing": 30},
    "gantt": {"barHeight": 24},
}
_FENCE = re.compile(r"^(?P<indent> *)```(?P<mark>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
_ITEM = re.compile(r"( {0,3})([-*+]|\d+[.)])( +)(?=\S)")


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """``text`` with everything that is in no fenced block changed."""
    parts, end = [], 0
    for found in _FENCE.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(text[end:])])


def fences(text: str) -> Iterator[tuple[str, str, str]]:
    """(mark, text, the line before it) of each fenced block."""
    for found in _FENCE.finditer(text):
        before = text[: found.start()].rstrip("\n").rpartition("\n")[2]
        yield found["mark"].strip(), found["text"], before.strip()


def diagram_name(source: str) -> str:
    """The file of a mermaid block as it is drawn now."""
    return hashlib.sha256(f"{LOOK}{source}".encode()).hexdigest()[:16] + ".svg"


def diagrams(text: str, place: str) -> str:
    """Each mermaid block as a picture, with the title that it gives itself."""

    def picture(found: re.Match[str]) -> str:
        if found["mark"].strip() != "mermaid":
            return found[0]
        title = re.search(r"^\s*accTitle: *(.*)$", found["text"], re.M)
        if title is None:
            raise ValueError(f"a diagram without accTitle: {found['text'][:80]}")
        return f"{found['indent']}![{title[1]}]({place}/{diagram_name(found['text'])})"

    return _FENCE.sub(picture, text)


def for_python_markdown(text: str) -> str:
    """Content of list items four columns in, a blank line before a list: what CommonMark does not ask for."""
    lines: list[str] = []
    stack: list[int] = []  # column at which the content of each open list item begins
    fence = False
    previous = ""
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and not fence:
            while stack and indent < stack[-1]:
                stack.pop()
        depth = len(stack)
        rest = line[min(indent, stack[-1] if stack else 0) :]
        item = None if fence else _ITEM.match(rest)
        if item and previous.strip() and not _ITEM.match(previous.lstrip(" ")) and not _in_item(lines, depth):
            lines.append("")
        lines.append("    " * depth + rest if rest.strip() else "")
        if item:
            stack.append((stack[-1] if stack else 0) + len(item[0]))
        if rest.startswith("```"):
            fence = not fence
        previous = line
    return "\n".join(lines)


def _in_item(lines: list[str], depth: int) -> bool:
    """Whether the paragraph that ends ``lines`` began as an item of the same list."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line[4 * depth :] if line.startswith("    " * depth) else line.lstrip(" ")):
            return True
    return False


def slug(title: str) -> str:
    """The anchor of a heading, as plain Git hosting makes it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Anchors of a page: its headings', numbered where two are the same, and those that it sets itself."""
    found: set[str] = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    plain = _FENCE.sub("", text)
    for title in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", plain, re.M):
        name, count = slug(title), 0
        while (one := f"{name}-{count}" if count else name) in found:
            count += 1
        found.add(one)
    return found


def links(text: str) -> Iterator[str]:
    """Targets of the links and pictures of a page, code left out."""
    plain = re.sub(r"`[^`\n]+`", "", _FENCE.sub("", text))
    yield from re.findall(r"\]\(([^)\s]+)\)", plain)
