"""The manual pages: every command has one, every option is on it, and groff has nothing to say against it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import manual
import pytest
from commands import commands

from hook import arguments
from hook import cdi_words as cdi
from nvc.cli import groups, options
from nvc.cli import reference as around
from nvc.cli.ctk import show
from nvc.cli.ctk.tree import ROOT, Flag
from tools.docs import commands as reference


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with all pages."""
    directory = tmp_path_factory.mktemp("man")
    assert 0 == manual.main(str(directory))
    return directory


def rendered(page: Path) -> tuple[str, str]:
    """(what a reader sees, groff's complaints). A page that is a link is looked up as man does."""
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    # -rHY=0: words are not hyphenated, so that options can be found.
    command = [
        "groff",
        "-s",
        "-man",
        "-Tutf8",
        "-ww",
        "-P-cbou",
        "-rHY=0",
        "-rLL=200n",
        str(page),
    ]
    # Not -I: groff 1.23 takes that for -g too, whose program Debian's groff-base has not.
    done = subprocess.run(command, cwd=page.parents[1], capture_output=True, text=True, check=True, timeout=20)
    return re.sub(r"\s+", " ", done.stdout), done.stderr


def option_rows() -> Iterator[tuple[str, set[str]]]:
    """(page, long options that must be on it), from the tables that the programs parse with."""
    yield "nvc-py.1", {f"--{option.long}" for option in options.GLOBAL}
    for name, (rows, _) in options.COMMANDS.items():
        yield f"nvc-py-{name}.1", {f"--{option.long}" for option in rows}
    for name in options.GROUPS:
        yield f"nvc-py-{name}.1", set(group_options(groups.load(name)))
    yield "nvc-hook.8", {f"--{name}" for name, _, _ in arguments.OPTIONS}
    yield "nvidia-ctk.1", {f"--{name}" for _, flags in show.rows(ROOT) for flag in flags for name in _shown(flag)}
    yield (
        "nvc-cdi-hook.8",
        {f"--{name}" for _, rows in cdi.HOOKS.values() for name, _, _ in rows} | {f"--{row[0]}" for row in cdi.COMMON},
    )


def _shown(flag: Flag) -> list[str]:
    return [name for name in flag.names if len(name) > 1] if not flag.hidden else []


def group_options(command: click.Command) -> Iterator[str]:
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield from (name for name in param.opts if name.startswith("--"))
    for child in getattr(command, "commands", {}).values():
        if not child.hidden:
            yield from group_options(child)


@pytest.mark.parametrize(("page", "wanted"), [pytest.param(*row, id=row[0]) for row in option_rows()])
def test_every_option_is_on_its_page(pages: Path, page: str, wanted: set[str]) -> None:
    text, complaints = rendered(pages / f"man{page[-1]}" / page)
    assert "" == complaints
    words = {word.rstrip(".") for word in re.findall(r"--[\w.-]+", text)}
    assert set() == wanted - words


def test_every_installed_command_has_a_page_that_renders(pages: Path) -> None:
    for name, _ in commands():
        found = list(pages.glob(f"man*/{name}.[18]"))
        assert 1 == len(found), name
        text, complaints = rendered(found[0])
        assert "" == complaints, name
        assert " NAME " in text and " SYNOPSIS " in text, name


def test_every_page_has_its_variables_files_and_exit_codes(pages: Path) -> None:
    shown = {f"nvc-py-{name}.1": f"nvc-py {name}" for name in options.SUMMARIES}
    shown |= {"nvc-py.1": "nvc-py", "nvidia-ctk.1": "nvidia-ctk"}
    shown |= {f"{name}.8": name for name in ("nvc-hook", "nvc-cdi-hook", "nvc-runtime")}
    for page, name in shown.items():
        text, _ = rendered(pages / f"man{page[-1]}" / page)
        for heading, rows in (
            (" ENVIRONMENT ", around.environment(name)),
            (" FILES ", around.files(name)),
            (" EXIT STATUS ", around.exits(name)),
        ):
            assert (heading in text) == bool(rows), (page, heading)
            for term, meaning in rows:
                assert f" {term} {manual._upper(meaning)}" in f" {text.partition(heading)[2]}", (page, term)


def test_man_finds_links_in_compressed_pages(pages: Path, tmp_path: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("no man here")
    copy = shutil.copytree(pages, tmp_path / "man")
    for page in copy.glob("man*/*"):
        subprocess.run(["gzip", "-9n", str(page)], check=True)
    command = ["man", "--warnings", "-E", "UTF-8", "-M", str(copy), "1", "nvidia-container-cli"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    assert "nvc-py - let containers use" in " ".join(done.stdout.split())
    assert "" == done.stderr


def test_every_subcommand_stands_on_its_groups_page(pages: Path) -> None:
    for name in options.GROUPS:
        text = (pages / f"man1/nvc-py-{name}.1").read_text()
        for child in getattr(groups.load(name), "commands", {}).values():
            assert f".SH {manual.escape(str(child.name).upper())}\n" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a-b", "a\\-b", id="hyphens stay hyphens"),
        pytest.param("a\\b", "a\\eb", id="backslash"),
        pytest.param(".PP", "\\&.PP", id="a leading dot is no request"),
        pytest.param("'so x", "\\(aqso x", id="a leading quote is no request"),
        pytest.param("`a`", "\\(gaa\\(ga", id="backquote"),
    ],
)
def test_escape(text: str, expected: str) -> None:
    assert expected == manual.escape(text)


def test_prose_shows_code_bold_and_joins_lines() -> None:
    assert "see \\fBnvc\\-py\\fR for more" == manual.prose("see `nvc-py`\n   for more")


def test_the_sites_reference_has_every_word_of_the_pages(pages: Path) -> None:
    """tools/docs makes Markdown of them; what it does not know is an error."""
    for page in (path for path in pages.rglob("*.*") if not path.read_text().startswith(".so ")):
        text = page.read_text()
        name, markdown = reference.convert(text)
        assert name == f"{page.stem}({page.suffix[1:]})"
        shown = re.sub(r"[^a-z0-9]+", " ", markdown.replace("\\", "").lower())
        for line in text.replace(".SH SYNOPSIS\n", "").splitlines()[2:]:
            words = reference.plain(re.sub(r"^\.(?:SH|(?:PP|TP|RS|RE|nf|fi|sp)\b.*)", "", line))
            assert re.sub(r"[^a-z0-9]+", " ", words.lower()).strip() in shown, f"{page.name}: {line}"


def test_a_request_that_the_reference_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the request \.IP is not known"):
        reference.convert(".TH X 1\n.IP a\n")
