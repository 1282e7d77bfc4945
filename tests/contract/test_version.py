"""One version: whatever says one takes it from ``nvc.__version__``, or is held to it here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from nvc import __version__

CHECKOUT = Path(__file__).parents[2]
DOCUMENTS = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("**/*.md"))]


def test_it_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((CHECKOUT / "packaging/chart/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_it_is_that_of_the_packages() -> None:
    assert "version = attr: nvc.__version__" in (CHECKOUT / "setup.cfg").read_text(), "the wheel's"
    script = (CHECKOUT / "packaging/deb").read_text()
    command = re.search(r"version=\$\{VERSION:-\$\(sed -n '(.*)' (\S+)\)\}", script)
    assert command is not None
    shown = subprocess.run(["sed", "-n", *command.groups()], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == __version__, "the deb's"
    words = [sys.executable, CHECKOUT / "packaging/debian.py", "changelog", __version__]
    text = subprocess.run(words, capture_output=True, text=True, check=True, cwd=CHECKOUT).stdout
    assert text.startswith(f"nvc-py ({__version__}) ")
    assert "  * nvc-py info, list" in text.replace("`", ""), "what has changed"


def test_it_has_a_section_of_the_changelog() -> None:
    text = (CHECKOUT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.*?)\](?: - \d{4}-\d{2}-\d{2})?$", text, re.MULTILINE)
    assert __version__ in versions
    assert set(versions) <= {"Unreleased", __version__}, "it is the first"
    assert len(text.splitlines()) <= 150
    kinds = re.findall(r"^### (.*)$", text.partition(f"## [{__version__}]")[2], re.MULTILINE)
    assert kinds == ["Added", "Changed", "Fixed", "Security"]


def test_it_is_that_of_every_command() -> None:
    for words in (("-m", "nvc", "version"), ("-m", "hook", "--version"), ("-m", "hook.cdi", "--version")):
        code = f"from {words[1]} import run; run()" if words[1] == "hook.cdi" else ""
        start = ["-c", code] if code else ["-m", words[1]]
        done = subprocess.run([sys.executable, *start, *words[2:]], capture_output=True, text=True, cwd=CHECKOUT)
        assert __version__ in done.stdout, (words, done)


def test_it_is_that_of_outputs_in_documents() -> None:
    """The agent's in `top`, and in `share ls` the GUARD at the end of a line."""
    agent = re.compile(r"\bnvc-py top .*\bagent (\d+\.\d+\.\d+)\b")
    guard = re.compile(r"^[0-9a-f]{12} .* (\d+\.\d+\.\d+)$", re.MULTILINE)
    found = {
        (path.name, version)
        for path in DOCUMENTS
        for version in (*agent.findall(path.read_text()), *guard.findall(path.read_text()))
    }
    assert found
    assert {version for _, version in found} == {__version__}, sorted(found)
