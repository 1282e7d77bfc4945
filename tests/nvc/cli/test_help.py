"""--help, --usage and completion show exactly the rows that are parsed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from nvc.cli import options
from nvc.cli.help import _TEACHING

Command = Callable[..., tuple[int, str, str]]
LEVELS = ["", *options.COMMANDS]


def words(level: str) -> list[str]:
    return [level] if level else []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("program", ["nvc-py", "nvidia-container-cli"])
def test_help_shows_every_row_and_nothing_else(level: str, program: str, command: Command) -> None:
    code, out, err = command(*words(level), "--help", program=program)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {program} {level}".strip() + " [OPTION...]")
    body = out[out.index("Options:") : out.index("Examples:")]
    shown = re.findall(r"^ +(?:-(.), )?--([\w-]+)(\[?=\S+)?", body, re.MULTILINE)
    expected = []
    for row in options.rows(level):
        value = f"={row.metavar}" if row.metavar else ""
        expected.append((row.short, row.long, f"[{value}]" if row.optional else value))
    assert shown == expected
    assert re.sub(r"\s+", " ", options.rows(level)[0].help) in re.sub(r"\s+", " ", body)


@pytest.mark.parametrize("level", LEVELS)
def test_help_has_examples(level: str, command: Command) -> None:
    out = command(*words(level), "-?", program="nvc-py").out
    examples = out[out.index("Examples:") :]
    assert "nvc-py" in examples
    assert set(_TEACHING) == set(LEVELS)


def test_the_overview_names_every_command(command: Command) -> None:
    out = command("--help").out
    section = out[out.index("Commands:") : out.index("Examples:")]
    assert re.findall(r"^  ([\w-]+) ", section, re.MULTILINE) == [*options.COMMANDS, *options.GROUPS]
    assert set(options.SUMMARIES) == {*options.COMMANDS, *options.GROUPS}


@pytest.mark.parametrize("level", LEVELS)
def test_usage_shows_every_row(level: str, command: Command) -> None:
    code, out, err = command(*words(level), "--usage")
    assert (code, err) == (0, "")
    shown = re.findall(r"\[(?:-(.)\|)?--([\w-]+)", out)
    assert shown == [(row.short, row.long) for row in options.rows(level)]
    assert all(len(line) <= 100 for line in out.splitlines())
    operands = options.COMMANDS[level][1] if level else ("COMMAND", "[ARG...]")
    assert out.split()[-1:] == list(operands[-1:]) or not operands


def complete(command: Command, monkeypatch: pytest.MonkeyPatch, line: str, program: str) -> list[str]:
    """What bash is offered for the last word of ``line``."""
    parts = line.split(" ")
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    monkeypatch.setenv(variable, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(parts) - 1))
    code, out, err = command(program=program)
    assert (code, err) == (0, "")
    return [answer.partition(",")[2] for answer in out.splitlines()]


@pytest.mark.parametrize("program", ["nvc-py", "nvidia-container-cli"])
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        pytest.param("con", ["configure", "config"], id="command"),
        pytest.param("configure --cuda-compat-mode ", ["mount", "ldconfig", "disabled"], id="choices"),
        pytest.param("configure --mig-c", ["--mig-config"], id="option"),
        pytest.param("frobnicate ", [*options.COMMANDS, *options.GROUPS], id="unknown-command-is-passed-over"),
        pytest.param("list --f", ["--firmwares"], id="option-of-list"),
        pytest.param("--no-", ["--no-pivot", "--no-create-imex-channels", "--no-cache"], id="global-option"),
    ],
)
def test_completion(
    line: str, offered: list[str], program: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete(command, monkeypatch, f"{program} {line}", program) == offered


@pytest.mark.parametrize("shell", options.SHELLS)
@pytest.mark.parametrize("program", ["nvc-py", "nvidia-container-cli"])
def test_completion_scripts(shell: str, program: str, command: Command) -> None:
    code, out, err = command("--completion", shell, program=program)
    assert (code, err) == (0, "")
    assert f"_{program.replace('-', '_').upper()}_COMPLETE={shell}_complete" in out
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=out, text=True, check=False).returncode == 0


def test_an_unknown_shell_is_named(command: Command) -> None:
    assert command("--completion=tcsh").err == (
        "nvidia-container-cli: input error: unknown shell: tcsh\n"
        "nvidia-container-cli: hint: --completion takes one of bash, zsh, fish\n"
    )


def test_the_completion_variable_of_another_program_is_ignored(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_NVC_PY_COMPLETE", "bash_complete")
    assert command("-V").out.startswith("cli-version")
    assert os.environ["_NVC_PY_COMPLETE"]
