"""Commands that are click groups: reached by name, and ending like every other command."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import click
import pytest

from nvc.base.errors import InputError
from nvc.cli import groups, options

Command = Callable[..., tuple[int, str, str]]


@click.group()
def sample() -> None:
    """A group for tests."""


@sample.command()
@click.argument("how")
def end(how: str) -> int | None:
    """End in some way."""
    if how == "abort":
        raise click.Abort
    if how == "exit":
        raise click.exceptions.Exit(3)
    if how == "fail":
        raise InputError("not like this", hint="like that")
    click.echo(f"said {how}")
    return 4 if how == "four" else None


@pytest.fixture
def sample_group(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sample_group")
    module.sample = sample  # type: ignore[attr-defined]
    monkeypatch.setattr(groups.importlib, "import_module", lambda name: module)
    monkeypatch.setitem(options.GROUPS, "sample", ("sample_group", "sample"))


@pytest.mark.parametrize(
    ("how", "code", "out"),
    [
        pytest.param("well", 0, "said well\n", id="well"),
        pytest.param("four", 4, "said four\n", id="its-number-is-the-code"),
        pytest.param("abort", 1, "", id="aborted"),
        pytest.param("exit", 3, "", id="its-exit-code"),
    ],
)
def test_exit_codes(how: str, code: int, out: str, command: Command, sample_group: None) -> None:
    assert command("sample", "end", how) == (code, out, "")


def test_no_command_is_a_line_and_not_the_whole_help(command: Command, sample_group: None) -> None:
    code, out, err = command("sample")
    assert (code, out) == (1, "")
    assert err == (
        "nvidia-container-cli sample: a command is missing: one of end\n"
        "Usage: nvidia-container-cli sample [OPTIONS] COMMAND [ARGS]...\n"
        "Try `nvidia-container-cli sample --help' for more information.\n"
    )


def test_an_option_without_its_value_names_the_command(command: Command) -> None:
    code, out, err = command("share", "set", "x", "mem=1Gi", "--gpu", program="nvc-py")
    assert (code, out) == (1, "")
    assert err == (
        "nvc-py share set: option '--gpu' requires an argument\nTry `nvc-py share set --help' for more information.\n"
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("set", "nvc-py share set"),
        ("create", "nvc-py sim create"),
        ("validate", "nvc-py cdi validate or nvc-py config validate"),
    ],
)
def test_a_command_of_a_group_is_found_there(word: str, meant: str, command: Command) -> None:
    code, _, err = command(word, program="nvc-py")
    assert code == 1
    assert f"nvc-py: hint: did you mean {meant}?\n" in err
    assert "hint" not in command(word)[2], "nvidia-container-cli has no such commands"


def test_a_list_of_commands_says_what_each_is_for_to_the_end() -> None:
    for name in options.GROUPS:
        group = groups.load(name)
        for child in getattr(group, "commands", {}).values():
            assert not child.get_short_help_str().endswith("..."), (name, child.name)
            assert ". " not in child.get_short_help_str(), (name, child.name)


def test_wrong_arguments_are_one_like_everywhere(command: Command, sample_group: None) -> None:
    code, out, err = command("sample", "end")
    assert (code, out) == (1, "")
    assert err == (
        "nvidia-container-cli sample end: missing argument 'HOW'\n"
        "Usage: nvidia-container-cli sample end [OPTIONS] HOW\n"
        "Try `nvidia-container-cli sample end --help' for more information.\n"
    )


@pytest.mark.parametrize("words", [("sample", "end", "--timeout=5"), ("list", "--timeout=5"), ("info", "--root", "/x")])
def test_an_option_of_the_program_has_its_place_told(
    words: tuple[str, ...], command: Command, sample_group: None
) -> None:
    """doctor's own help speaks of --timeout, and `nvc-py doctor --timeout 5` had no such option."""
    option = words[-2] if words[-1] == "/x" else words[-1].partition("=")[0]
    code, out, err = command(*words, program="nvc-py")
    assert (code, out) == (1, "")
    assert f"nvc-py: hint: it stands before the command: nvc-py {option} ...\n" in err
    assert "hint" not in command("sample", "end", "--nothing-like-it").err


def test_our_errors_are_told_as_everywhere(command: Command, sample_group: None) -> None:
    assert command("sample", "end", "fail").err == (
        "nvidia-container-cli: input error: not like this\nnvidia-container-cli: hint: like that\n"
    )


def test_help(command: Command, sample_group: None) -> None:
    code, out, _ = command("sample", "--help", program="nvc-py")
    assert code == 0
    assert out.startswith("Usage: nvc-py sample [OPTIONS] COMMAND")


@pytest.mark.parametrize("name", options.GROUPS)
def test_every_group_of_the_table_is_there(name: str) -> None:
    assert isinstance(groups.load(name), click.Command)
    assert groups.load(name).help


def test_a_group_is_completed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_NVC_PY_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "nvc-py sim cre")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert command(program="nvc-py").out == "plain,create\n"
