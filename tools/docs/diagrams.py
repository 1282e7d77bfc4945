"""Draws the mermaid blocks of all pages as SVG, by mermaid-cli and the system's chromium, each once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.docs import markdown
from tools.docs.made import DIAGRAMS, NODE, ROOT

_PACKAGES = ("@mermaid-js/mermaid-cli@11", "puppeteer", "iframe-worker@1")


def pages() -> Iterator[Path]:
    yield from sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


def wanted() -> dict[str, str]:
    """File -> source of each diagram."""
    return {
        markdown.diagram_name(text): text
        for path in pages()
        for mark, text, _ in markdown.fences(path.read_text(encoding="utf-8"))
        if mark == "mermaid"
    }


def packages() -> None:
    """npm's packages: mermaid-cli, and what a page of file:// needs for its search."""
    if not (NODE / "node_modules/iframe-worker").exists():
        NODE.mkdir(parents=True, exist_ok=True)
        _run("npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(NODE), *_PACKAGES)


def main() -> None:
    packages()
    DIAGRAMS.mkdir(parents=True, exist_ok=True)
    sources = wanted()
    for old in DIAGRAMS.iterdir():
        if old.name not in sources:
            old.unlink()
    missing = {name: text for name, text in sources.items() if not (DIAGRAMS / name).exists()}
    if missing:
        _draw(missing)


def _draw(sources: dict[str, str]) -> None:
    """All in one run: most of the time is chromium's start."""
    program = NODE / "node_modules/.bin/mmdc"
    with tempfile.TemporaryDirectory() as place:
        text = "\n".join(f"```mermaid\n{source}```\n" for source in sources.values())
        Path(place, "all.md").write_text(text, encoding="utf-8")
        Path(place, "look.json").write_text(json.dumps(markdown.LOOK))
        Path(place, "browser.json").write_text(json.dumps({"args": ["--no-sandbox"]}))
        files = ("-i", "all.md", "-o", "drawn.md", "-c", "look.json", "-p", "browser.json")
        _run(str(program), "-q", "-e", "svg", "-b", "transparent", *files, directory=place)
        for number, name in enumerate(sources, start=1):
            shutil.move(Path(place, f"drawn-{number}.svg"), DIAGRAMS / name)


def _run(*command: str, directory: str | None = None) -> None:
    browser = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), "")
    env = {**os.environ, "PUPPETEER_SKIP_DOWNLOAD": "1", "PUPPETEER_EXECUTABLE_PATH": browser}
    done = subprocess.run(
        command, cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"docs: {' '.join(command)} failed:\n{re.sub(r'^', '    ', done.stdout, flags=re.M)}")


if __name__ == "__main__":
    main()
