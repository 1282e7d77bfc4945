"""Measure the structure and the terms of a checkout: ``python -m tools.structure [--list KIND] [ROOT]``.

Prints one line for each measure. ROOT: another checkout, for figures of before. KIND: names each find of a measure
(arrows, cycles, flat, terms, who, references). Text of native/ is counted apart; records of past runs (docs/measured)
are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
_PAGES = ("README.md", "CHANGELOG.md", "SECURITY.md")
#: Where text is looked at, below the root.
_TEXT = ("nvc", "hook", "rpc", "tests", "tools", "packaging", "docs", "native", *_PAGES)
#: Records of past runs, texts of specifications, and what names the terms itself.
_LEFT_OUT = (
    "docs/measured/",
    "docs/reference/",
    "docs/glossary.md",
    "tools/structure.py",
    "tests/contract/test_glossary.py",
)
_KINDS = (".py", ".md", ".c", ".h", ".json", ".sh", ".service", ".cu", "")
_PERSON = (
    "users?|people|persons?|administrators?|operators?|readers?|owners?|maintainers?|developers?|authors?|attackers?"
)
_WHO = re.compile(r"\b(?:who|whom|whoever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
_OF_PERSON = re.compile(rf"\b(?:{_PERSON}),? (?:\w+ ){{0,2}}$", re.IGNORECASE)
#: A reference to a section of a page of docs/reference; anything else that looks like one does not resolve.
_REFERENCE = re.compile(r"\b([a-z][a-z-]+)\.md,? (\d+(?:\.\d+)*)\b")
_SOURCE = r"(?: of (?:the )?(?:NVIDIA |container|lib|GPU sharing)[^.()]{0,40}?)?"
_LOOSE = re.compile(rf"(?<!-)\bspec(?:s|ification)?{_SOURCE},? (?:sections? )?\d+(?:\.\d+)*", re.IGNORECASE)
#: A page of ours, named in a comment or a text.
_PAGE = re.compile(r"(?<![\w/.-])docs/[a-z0-9/-]+\.md\b")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


class Tree:
    """The modules of nvc below a root, and who imports what (also within functions and for type checkers)."""

    def __init__(self, root: Path) -> None:
        self.modules = {name(path, root): path for path in sorted((root / "nvc").rglob("*.py"))}
        self.arrows: dict[tuple[str, str], set[str]] = defaultdict(set)
        for module, path in self.modules.items():
            for target in self._imports(path):
                if room(module) != room(target) and "nvc" not in (room(module), room(target)):
                    self.arrows[room(module), room(target)].add(f"{module} -> {target}")

    def _imports(self, path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    if full in self.modules or node.module in self.modules:
                        yield full if full in self.modules else node.module

    def flat(self) -> list[str]:
        """Modules beside the packages; what makes nvc a package and a program does not count."""
        inside = [module for module, path in self.modules.items() if path.parent.name == "nvc"]
        return sorted(set(inside) - {"nvc", "nvc.__main__", "nvc.model"})

    def cycles(self) -> list[str]:
        """Groups of packages that import each other, directly or over others."""
        reach: dict[str, set[str]] = {}
        for start in {place for arrow in self.arrows for place in arrow}:
            seen: set[str] = set()
            todo = [start]
            while todo:
                here = todo.pop()
                more = {to for source, to in self.arrows if source == here} - seen
                seen |= more
                todo += more
            reach[start] = seen
        groups = {frozenset(b for b in reach if b in reach[a] and a in reach[b]) for a in reach if a in reach[a]}
        return sorted(", ".join(sorted(group)) for group in groups)


def name(path: Path, root: Path) -> str:
    """The module at a path."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def room(module: str) -> str:
    """The package, or module, directly below nvc."""
    return ".".join(module.split(".")[:2])


def texts(root: Path) -> Iterator[tuple[str, int, str]]:
    """Each line of text: file, number, line."""
    for top in _TEXT:
        for path in sorted((root / top).rglob("*")) if (root / top).is_dir() else [root / top]:
            relative = str(path.relative_to(root))
            if path.suffix not in _KINDS or not path.is_file() or path.is_symlink():
                continue
            if relative.startswith(_LEFT_OUT) or "__pycache__" in relative:
                continue
            try:
                lines = path.read_text().splitlines()
            except UnicodeDecodeError:
                continue
            yield from ((relative, number, line) for number, line in enumerate(lines, 1))


def private_terms() -> re.Pattern[str]:
    """What the glossary's column "not" lists: identifiers in backquotes, words and phrases as they stand."""
    found = []
    for line in (HERE / "docs/glossary.md").read_text().splitlines():
        cells = line.split("|")
        if len(cells) == 5 and cells[3].strip() not in ("not", "---", ""):
            found += [term.strip().strip("`") for term in cells[3].split(",")]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, found))})(?![\w])")


def terms(root: Path) -> list[str]:
    pattern = private_terms()
    return [f"{file}:{number}: {m.group()}" for file, number, line in texts(root) for m in pattern.finditer(line)]


def who(root: Path) -> list[str]:
    """Sentences with "who" and the like, whose subject is not a person."""
    return [
        f"{file}:{number}: {line.strip()[:150]}"
        for file, number, line in texts(root)
        for match in _WHO.finditer(line)
        if not _OF_PERSON.search(line[: match.start()])
    ]


def references(root: Path) -> list[str]:
    """References to a section of a specification, names of pages, and links of pages, that lead nowhere."""
    pages = {
        page.name: set(re.findall(r"^#+ (?:Appendix )?(\d+(?:\.\d+)*)\.?\s", page.read_text(), re.MULTILINE))
        for page in (root / "docs/reference").glob("*.md")
    }
    bad = []
    for file, number, line in texts(root):
        for match in _REFERENCE.finditer(line):
            if match[2] not in pages.get(f"{match[1]}.md", ()):
                bad.append(f"{file}:{number}: {match.group()}")
        bad += [f"{file}:{number}: {match.group()}" for match in _LOOSE.finditer(line)]
        bad += [f"{file}:{number}: {page}" for page in _PAGE.findall(line) if not (root / page).exists()]
        if file.endswith(".md"):
            for target in _LINK.findall(line):
                if "://" not in target and not (root / file).parent.joinpath(target).exists():
                    bad.append(f"{file}:{number}: link to {target}")
    return bad


def main(arguments: list[str]) -> None:
    kind = arguments[arguments.index("--list") + 1] if "--list" in arguments else ""
    rest = [word for word in arguments if word not in ("--list", kind)]
    root = Path(rest[0] if rest else HERE).resolve()
    tree = Tree(root)
    found = {
        "flat": tree.flat(),
        "cycles": tree.cycles(),
        "arrows": sorted(f"{a} -> {b}" for a, b in tree.arrows),
        "terms": terms(root),
        "who": who(root),
        "references": references(root),
    }
    if kind:
        print("\n".join(found[kind]))
        return
    labels = {
        "flat": "flat modules in nvc/ besides model",
        "cycles": "package cycles",
        "arrows": "arrows between packages",
        "terms": "private terms",
        "who": 'sentences with "who"',
        "references": "unresolved references",
    }
    for key, label in labels.items():
        native = sum(line.startswith(("native/", "tests/native/")) for line in found[key])
        print(f"{label:36} {len(found[key]) - native:5}" + (f"   (native: {native})" if native else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
