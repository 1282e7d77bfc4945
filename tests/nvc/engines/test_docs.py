"""Every ``nvc-py`` command on the engines' pages, in the order of the page, on a machine in a directory."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from nvc.cli import runtime
from nvc.cli.main import main
from nvc.engines.files import Files
from nvc.engines.table import ENGINES

PAGES = Path(__file__).parents[3] / "docs/user/engines"
START = {
    "docker": {"docker/daemon.json": '{\n  "debug": true\n}\n'},
    "containerd": {"containerd/config.toml": "# mine\nversion = 2\n"},
    "crio": {"crio/crio.conf": "# mine\n"},
    "podman": {},
}


def commands(engine: str) -> list[list[str]]:
    """The words of the commands in the page's code blocks; those marked ``sh`` are run by tests/engines."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (PAGES / f"{engine}.md").read_text(), re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for kind, block in blocks if not kind for line in block.splitlines()]


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The engines' directories, below a temporary one; our programs are there."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("nvc-py", "nvc-runtime", "nvc-hook"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr(runtime.sys, "argv", [str(programs / "nvc-py")])
    for name, row in ENGINES.items():
        moved = row._replace(
            **{
                key: getattr(row, key).replace("/etc/", f"{tmp_path}/etc/")
                for key in ("config", "drop_in", "hooks_dir")
            },
            own=("", "", ""),
        )
        monkeypatch.setitem(ENGINES, name, moved)
    return tmp_path / "etc"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_page(engine: str, etc: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in START[engine].items():
        (etc / name).parent.mkdir(parents=True)
        (etc / name).write_text(text)
    ran, removed, advised = 0, 0, set()
    for words in commands(engine):
        words = words[1:] if words[0] == "sudo" else words
        if words[0] == "systemctl":
            assert " ".join(words) in advised, f"the page says {words}, the command says {advised}"
            continue
        assert words[:3] == ["nvc-py", "runtime", "configure"], words
        before = snapshot(etc)
        assert main([word.replace("=/etc/", f"={etc}/") for word in words[1:]], "nvc-py") == 0
        _, err = capfd.readouterr()
        advised.update(re.findall(r"^now run: (.*)$", err, re.MULTILINE))
        ran += 1
        if "--dry-run" in words:
            assert snapshot(etc) == before
        if "--remove" in words:
            removed += 1
            assert "note" not in err or "other hooks" in err
    assert ran >= 5
    assert removed >= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_remove_undoes_all_commands_before_it(engine: str, etc: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in START[engine].items():
        (etc / name).parent.mkdir(parents=True)
        (etc / name).write_text(text)
    start = snapshot(etc)
    all_words = [words[1:] if words[0] == "sudo" else words for words in commands(engine)]
    ours = [words[1:] for words in all_words if words[0] == "nvc-py"]
    last = max(at for at, words in enumerate(ours) if "--remove" in words)
    for words in ours[: last + 1]:
        assert main([word.replace("=/etc/", f"={etc}/") for word in words], "nvc-py") == 0
    capfd.readouterr()

    assert snapshot(etc) == start


def snapshot(etc: Path) -> dict[str, str]:
    return {str(path): Files().read(str(path)) or "" for path in sorted(etc.rglob("*")) if path.is_file()}


def test_every_engine_has_a_page_with_every_file_it_edits() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} >= set(ENGINES)
    for name, row in ENGINES.items():
        text = (PAGES / f"{name}.md").read_text()
        edited = [row.drop_in or row.config, *([row.hooks_dir] if row.hooks_dir else [])]
        assert [place for place in edited if place not in text] == []
