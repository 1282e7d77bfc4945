"""The hook's command line, under its own name and as nvidia-container-runtime-hook."""

from __future__ import annotations

import pytest

from hook.arguments import ALIASES, OPTIONS, STAGES, Arguments, parse, usage
from nvc.base.errors import UsageError
from nvc.doctor.host import CONFIGS


@pytest.mark.parametrize("stage", STAGES)
def test_stages(stage: str) -> None:
    assert Arguments(stage) == parse([stage], "nvc-hook")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["--debug", "/l", "prestart"], Arguments("prestart", debug="/l"), id="value apart"),
        pytest.param(["--debug=/l", "prestart"], Arguments("prestart", debug="/l"), id="value joined"),
        pytest.param(["prestart", "--debug=/l"], Arguments("prestart", debug="/l"), id="after the stage"),
        pytest.param(["-debug", "prestart"], Arguments("prestart", debug="/dev/stderr"), id="one dash: a switch"),
        pytest.param(["-config", "/c", "prestart"], Arguments("prestart", config="/c"), id="one dash"),
        pytest.param(["-config=/c=d", "prestart"], Arguments("prestart", config="/c=d"), id="= in the value"),
        pytest.param(["--sim", "/s", "prestart"], Arguments("prestart", sim="/s"), id="sim"),
        pytest.param(["--timeout=2.5", "prestart"], Arguments("prestart", timeout=2.5), id="timeout"),
        pytest.param(["--debug=/a", "--debug=/b", "prestart"], Arguments("prestart", debug="/b"), id="last wins"),
        pytest.param(["--version"], Arguments(version=True), id="version"),
        pytest.param(["-h", "bogus"], Arguments(help=True), id="help before everything"),
    ],
)
def test_options(argv: list[str], expected: Arguments) -> None:
    assert expected == parse(argv, "nvc-hook")


@pytest.mark.parametrize("program", ALIASES)
@pytest.mark.parametrize("option", ["-debug", "--debug"])
def test_debug_is_a_switch_under_the_other_names(program: str, option: str) -> None:
    assert Arguments("prestart", debug="/dev/stderr") == parse([option, "prestart"], program)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        pytest.param([], "a stage is needed", id="nothing"),
        pytest.param(["--debug=/l"], "a stage is needed", id="only an option"),
        pytest.param(["bogus"], "unknown stage 'bogus'", id="unknown stage"),
        pytest.param(["startContainer"], "unknown stage", id="a stage inside the container"),
        pytest.param(["Prestart"], "unknown stage", id="other case"),
        pytest.param([""], "unknown stage ''", id="empty word"),
        pytest.param(["-"], "unknown stage '-'", id="a dash"),
        pytest.param(["prestart", "createRuntime"], "unexpected argument 'createRuntime'", id="two stages"),
        pytest.param(["--bogus", "prestart"], "unknown option '--bogus'", id="unknown option"),
        pytest.param(["--", "prestart"], "unknown option '--'", id="dashes"),
        pytest.param(["prestart", "--config"], "--config needs a value: PATH", id="value missing"),
        pytest.param(["--config=", "prestart"], "--config needs a value", id="value empty"),
        pytest.param(["--config=/a\0b", "prestart"], "--config needs a value", id="NUL"),
        pytest.param(["--help=x"], "--help takes no value", id="switch with a value"),
        pytest.param(["--timeout=x", "prestart"], "--timeout 'x'", id="timeout is no number"),
        pytest.param(["--timeout=0", "prestart"], "--timeout '0'", id="timeout zero"),
        pytest.param(["--timeout=-1", "prestart"], "--timeout '-1'", id="timeout negative"),
        pytest.param(["--timeout=nan", "prestart"], "--timeout 'nan'", id="timeout nan"),
        pytest.param(["--timeout=inf", "prestart"], "--timeout 'inf'", id="timeout endless"),
    ],
)
def test_wrong_usage(argv: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(argv, "nvc-hook")


def test_help_names_every_option_and_stage() -> None:
    text = usage("nvc-hook")

    assert [word for word in (*STAGES, *(f"--{name}" for name, _, _ in OPTIONS)) if word not in text] == []
    assert max(len(line) for line in text.splitlines()) <= 100
    # The file that counts first: it named the toolkit's alone.
    assert f"in place of {CONFIGS[0]} " in text


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["prestrat"], "did you mean prestart? one of "),
        (["--confg=/c", "prestart"], "did you mean --config?"),
        (["-versoin"], "did you mean --version?"),
        (["--bogus", "prestart"], ""),
    ],
)
def test_a_mistyped_word_has_a_hint(argv: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(argv, "nvc-hook")
    assert raised.value.hint.startswith(hint) and bool(raised.value.hint) == bool(hint)
