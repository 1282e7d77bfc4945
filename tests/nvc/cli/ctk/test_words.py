"""nvidia-ctk's command line is read as NVIDIA's program reads it (1.20.0, urfave/cli 3), whose words were noted."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest

from hook.ctk import hook_words
from nvc import __version__
from nvc.cli.ctk.parse import WrongUsage, parse
from nvc.cli.ctk.tree import ROOT
from tests.nvc.cli.ctk.conftest import Ctk

CONFIGURE = ("runtime", "configure")
GENERATE = ("cdi", "generate")


def text(words: tuple[str, ...], name: str, environment: Mapping[str, str] | None = None) -> str:
    return parse(ROOT, words, environment or {}).text(name)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        pytest.param((*CONFIGURE, "--runtime=crio"), "runtime", "crio", id="equals"),
        pytest.param((*CONFIGURE, "-runtime", "crio"), "runtime", "crio", id="one dash, next word"),
        pytest.param((*CONFIGURE, "--runtime=a", "--runtime=b"), "runtime", "b", id="the last counts"),
        pytest.param((*CONFIGURE, "x", "--runtime=crio"), "runtime", "crio", id="behind an argument"),
        pytest.param((*CONFIGURE, "--", "--runtime=crio"), "runtime", "docker", id="not behind two dashes"),
        pytest.param((*CONFIGURE, "--runtime-path", "/p"), "nvidia-runtime-path", "/p", id="another name"),
        pytest.param((*CONFIGURE, "--config", "/c"), "config", "/c", id="the lower command's option"),
        pytest.param(("config", "-io", "/o"), "output", "/o", id="letters together"),
        pytest.param(("config", "--output="), "output", "", id="an empty value"),
        pytest.param(("config", "-o", "-x"), "output", "-x", id="a value with a dash"),
    ],
)
def test_a_value(words: tuple[str, ...], name: str, value: str) -> None:
    assert text(words, name) == value


@pytest.mark.parametrize(
    ("words", "on"),
    [
        (("--set-as-default",), True),
        (("--nvidia-set-as-default=0",), False),
        (("--set-as-default", "--set-as-default=false"), False),
        (("-set-as-default=T",), True),
        ((), False),
    ],
)
def test_a_switch(words: tuple[str, ...], on: bool) -> None:
    assert parse(ROOT, (*CONFIGURE, *words), {}).flag("nvidia-set-as-default") == on


def test_items_of_a_list_add_up_and_stand_for_the_default() -> None:
    words = (*GENERATE, "--device-id", "0,1", "--devices=GPU-x")

    assert parse(ROOT, words, {}).items("device-id") == ("0", "1", "GPU-x")
    assert parse(ROOT, GENERATE, {}).items("device-id") == ("all",)


def test_a_variable_stands_in_for_an_option() -> None:
    environment = {"NVIDIA_CTK_DRIVER_ROOT": "/d", "NVIDIA_CTK_CDI_GENERATE_DEVICE_IDS": "1,2"}

    assert text(GENERATE, "driver-root", environment) == "/d"
    assert text((*GENERATE, "--driver-root=/e"), "driver-root", environment) == "/e"
    assert parse(ROOT, GENERATE, environment).items("device-id") == ("1", "2")


def test_options_of_the_program_may_stand_behind_a_command() -> None:
    assert parse(ROOT, (*GENERATE, "--debug"), {}).flag("debug")
    assert parse(ROOT, ("-d", *GENERATE), {}).flag("debug")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("config", "--bogus"), "flag provided but not defined: -bogus"),
        (("config", "-o"), "flag needs an argument: -o"),
        (("config", "--in-place=maybe"), 'invalid value "maybe" for flag -in-place: parse error'),
        ((*CONFIGURE, "-xy"), "flag provided but not defined: -xy"),
        (("config", "-ox", "/f"), "flag provided but not defined: -ox"),
    ],
)
def test_wrong_usage_is_their_message_and_1(ctk: Ctk, words: tuple[str, ...], said: str) -> None:
    ran = ctk(*words)

    assert ran.code == 1
    assert ran.out == ""
    assert f"Incorrect Usage: {said}\n" in ran.err
    with pytest.raises(WrongUsage, match="flag"):
        parse(ROOT, words, {})


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("config", "--in-plase"), 1, "did you mean --in-place?\n"),
        ((*GENERATE, "--outptu=/f"), 1, "did you mean --output?\n"),
        (("cdi", "generat"), 3, "No help topic for 'generat' (did you mean generate?)\n"),
        (("system", "create-device-node"), 3, "(did you mean create-device-nodes?)\n"),
        (("runtim",), 3, "No help topic for 'runtim' (did you mean runtime?)\n"),
        ((*CONFIGURE, "--runtime=dokcer"), 1, "(hint: did you mean docker? one of "),
        ((*GENERATE, "--format=jsn"), 1, "(hint: did you mean json? one of "),
        ((*GENERATE, "--device-name-strategy=idnex"), 1, "(hint: did you mean index? one of "),
        (("config", "--set=nvidia-container-cli.dbeug=/d"), 1, "(hint: did you mean nvidia-container-cli.debug?)"),
        (
            ("cdi", "transform", "root", "--from=/a", "--to=/b", "--relative-to=hots"),
            1,
            "(hint: did you mean host? one of ",
        ),
    ],
)
def test_a_mistyped_word_has_a_hint(ctk: Ctk, words: tuple[str, ...], code: int, said: str) -> None:
    ran = ctk(*words)
    assert (ran.code, said in ran.err) == (code, True), ran.err


def test_a_variable_that_is_no_boolean(ctk: Ctk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_CTK_DEBUG", "perhaps")

    assert 'could not parse "perhaps" as bool value from environment variable "NVIDIA_CTK_DEBUG"' in ctk("info").err


@pytest.mark.parametrize("words", [("foo",), ("cdi", "foo"), ("system", "foo")])
def test_an_unknown_command_is_3(ctk: Ctk, words: tuple[str, ...]) -> None:
    assert ctk(*words) == (3, "", f"No help topic for '{words[-1]}'\n")


@pytest.mark.parametrize(
    "words", [(), ("--help",), ("help",), ("-h",), ("cdi",), ("help", "cdi", "generate"), ("info",)]
)
def test_help(ctk: Ctk, words: tuple[str, ...]) -> None:
    ran = ctk(*words)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("NAME:\n   nvidia-ctk")


def test_help_of_a_command_names_its_options(ctk: Ctk) -> None:
    out = ctk(*GENERATE, "--help").out

    assert "--mode, --discovery-mode VALUE" in out
    assert "$NVIDIA_CTK_CDI_GENERATE_MODE" in out


@pytest.mark.parametrize("word", ["--version", "-v", "-version"])
def test_the_version_is_of_the_toolkit_and_ours(ctk: Ctk, word: str) -> None:
    assert ctk(word).out == f"NVIDIA Container Toolkit CLI version 1.20.0 (nvc-py {__version__})\n"


def test_lines_on_standard_error_are_those_of_logrus(ctk: Ctk) -> None:
    ran = ctk("cdi", "list", "--spec-dir=/nonexistent")

    assert ran.code == 0
    assert ran.err.startswith('time="20')
    assert ran.err.endswith('" level=info msg="Found 0 CDI devices"\n')
    assert ctk("--quiet", "cdi", "list", "--spec-dir=/nonexistent").err == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("hook", "chmod", "--path=/x"), ["chmod", "--path=/x"]),
        (("--debug", "hook", "noop"), ["--debug", "noop"]),
        (("--config", "hook", "hook", "noop"), ["noop"]),
        (("-config=x", "--quiet", "hook"), ["--quiet"]),
        (("cdi", "hook"), None),
        (("--debug", "config"), None),
        ((), None),
    ],
)
def test_hooks_are_told_from_other_commands(words: tuple[str, ...], expected: list[str] | None) -> None:
    assert hook_words(words) == expected


def test_completion(ctk: Ctk) -> None:
    assert ctk("cdi", "--generate-shell-completion").out.split("\n")[0].startswith("generate:")
    assert ctk(*GENERATE, "--form", "--generate-shell-completion").out.startswith("--format:")
    script = ctk("completion", "bash").out
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
