"""The getopt grammar and glibc's error texts (libnvidia-container.md 1.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.cli import options
from nvc.cli.compat.getopt import ArgumentError, Parsed, parse

CLI = "nvidia-container-cli"


def at_top(*words: str) -> Parsed:
    return parse(CLI, words, options.GLOBAL, in_order=True)


def in_configure(*words: str) -> Parsed:
    return parse(f"{CLI} configure", words, options.CONFIGURE, in_order=False)


def seen(parsed: Parsed) -> list[tuple[str, str | None]]:
    return [(option.long, value) for option, value in parsed.events]


@pytest.mark.parametrize(
    ("words", "events", "rest"),
    [
        pytest.param((), [], [], id="nothing"),
        pytest.param(("--debug=f", "info"), [("debug", "f")], ["info"], id="long-attached"),
        pytest.param(("--debug", "f", "info"), [("debug", "f")], ["info"], id="long-detached"),
        pytest.param(("--debug=", "info"), [("debug", "")], ["info"], id="long-empty"),
        pytest.param(("-d", "f", "info"), [("debug", "f")], ["info"], id="short-detached"),
        pytest.param(("-df", "info"), [("debug", "f")], ["info"], id="short-attached"),
        pytest.param(("-d=f", "info"), [("debug", "=f")], ["info"], id="short-equals-is-part-of-the-value"),
        pytest.param(("-kn", "info"), [("load-kmods", None), ("no-pivot", None)], ["info"], id="cluster"),
        pytest.param(("-knd", "f", "x"), [("load-kmods", None), ("no-pivot", None), ("debug", "f")], ["x"], id="cdf"),
        pytest.param(("-knu1:2", "x"), [("load-kmods", None), ("no-pivot", None), ("user", "1:2")], ["x"], id="cu"),
        pytest.param(("--user", "1000", "x"), [("user", None)], ["1000", "x"], id="optional-is-never-detached"),
        pytest.param(("-u", "1000", "x"), [("user", None)], ["1000", "x"], id="optional-short-is-never-detached"),
        pytest.param(("--user=1000", "x"), [("user", "1000")], ["x"], id="optional-attached"),
        pytest.param(("-u1000:2", "x"), [("user", "1000:2")], ["x"], id="optional-short-attached"),
        pytest.param(("info", "--debug=f"), [], ["info", "--debug=f"], id="in-order-stops-at-the-command"),
        pytest.param(("--", "--debug=f"), [], ["--debug=f"], id="two-dashes-end-options"),
        pytest.param(("-", "-k"), [], ["-", "-k"], id="one-dash-is-an-operand"),
        pytest.param(("--debug", "--", "info"), [("debug", "--")], ["info"], id="a-value-may-look-like-an-end"),
        pytest.param(("--deb=f", "--load", "x"), [("debug", "f"), ("load-kmods", None)], ["x"], id="abbreviations"),
        pytest.param(("--no-c", "x"), [("no-create-imex-channels", None)], ["x"], id="ours-do-not-make-it-ambiguous"),
        pytest.param(("--no-cac", "x"), [("no-cache", None)], ["x"], id="ours-can-be-shortened-too"),
    ],
)
def test_global_options(words: tuple[str, ...], events: list[tuple[str, str | None]], rest: list[str]) -> None:
    parsed = at_top(*words)
    assert (seen(parsed), parsed.rest) == (events, rest)


@pytest.mark.parametrize(
    ("words", "events", "operands"),
    [
        pytest.param(("/r", "-c", "-u"), [("compute", None), ("utility", None)], ["/r"], id="options-after-rootfs"),
        pytest.param(("-cu", "/r", "-p", "7"), [("compute", None), ("utility", None), ("pid", "7")], ["/r"], id="both"),
        pytest.param(("-p", "-1", "/r"), [("pid", "-1")], ["/r"], id="a-value-may-start-with-a-dash"),
        pytest.param(("-c", "--", "-u"), [("compute", None)], ["-u"], id="two-dashes"),
        pytest.param(("--dry-run", "/r"), [("dry-run", None)], ["/r"], id="dry-run-alone"),
        pytest.param(("--dry-run=json", "/r"), [("dry-run", "json")], ["/r"], id="dry-run-json"),
        pytest.param(("--p=1", "--disp", "/r"), [("pid", "1"), ("display", None)], ["/r"], id="abbreviations"),
        pytest.param(("--d", "/r"), None, [], id="--d-is-ambiguous"),
    ],
)
def test_command_options(
    words: tuple[str, ...], events: list[tuple[str, str | None]] | None, operands: list[str]
) -> None:
    if events is None:
        with pytest.raises(ArgumentError, match="ambiguous"):
            in_configure(*words)
        return
    parsed = in_configure(*words)
    assert (seen(parsed), parsed.operands) == (events, operands)


@pytest.mark.parametrize(
    ("words", "action"),
    [
        (("--help",), "help"),
        (("-?",), "help"),
        (("-k?",), "help"),
        (("-?Z",), "help"),
        (("--usage", "--nonsense"), "usage"),
        (("-V",), "version"),
        (("--vers",), "version"),
        (("--completion=bash", "--nonsense"), "completion"),
    ],
)
def test_actions_end_parsing_where_they_stand(words: tuple[str, ...], action: str) -> None:
    assert at_top(*words).action == action


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(("--foo",), "unrecognized option '--foo'", id="unknown"),
        pytest.param(("--foo=bar",), "unrecognized option '--foo=bar'", id="unknown-with-value"),
        pytest.param(("--foo", "--help"), "unrecognized option '--foo'", id="before-an-action"),
        pytest.param(("-kx",), "invalid option -- 'x'", id="unknown-short"),
        pytest.param(("-h",), "invalid option -- 'h'", id="-h-is-not-help"),
        pytest.param(("--debug",), "option '--debug' requires an argument", id="missing-value"),
        pytest.param(("--deb",), "option '--debug' requires an argument", id="missing-value-shows-the-full-name"),
        pytest.param(("-kd",), "option requires an argument -- 'd'", id="missing-short-value"),
        pytest.param(("--load-kmods=1",), "option '--load-kmods' doesn't allow an argument", id="needless-value"),
        pytest.param(
            ("--l=x",), "option '--l=x' is ambiguous; possibilities: '--load-kmods' '--ldcache'", id="ambiguous"
        ),
        pytest.param(("--us",), "option '--us' is ambiguous; possibilities: '--user' '--usage'", id="ambiguous-common"),
    ],
)
def test_error_texts(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        at_top(*words)
    assert (caught.value.program, caught.value.message) == (CLI, message)


def test_inside_a_command_its_name_is_the_program() -> None:
    with pytest.raises(ArgumentError) as caught:
        in_configure("--v")
    assert caught.value.program == "nvidia-container-cli configure"
    assert caught.value.message == "option '--v' is ambiguous; possibilities: '--video' '--version'"


def test_repeated_options() -> None:
    parsed = in_configure("-d0", "--device=1", "--cuda-compat-mode=mount", "-c", "--no-cntlibs", "-d", "")
    assert parsed.all("device") == ["0", "1", ""]
    assert parsed.last("device") == ""
    assert parsed.last("pid") is None
    assert parsed.names("container_options") == ["cuda-compat-mode=mount", "compute", "no-cntlibs"]
    assert parsed.has("device")
    assert not parsed.has("pid")


@pytest.mark.parametrize("command", ["", *options.COMMANDS])
def test_rows_are_consistent(command: str) -> None:
    rows = options.rows(command)
    longs = [row.long for row in rows]
    shorts = [row.short for row in rows if row.short]
    assert len(set(longs)) == len(longs)
    assert len(set(shorts)) == len(shorts)
    assert all(row.help.endswith(".") for row in rows)
    assert all(row.metavar for row in rows if row.optional or row.choices)


WORDS = st.lists(
    st.one_of(
        st.sampled_from(["--", "-", "--device", "--device=", "-d", "-cu", "-?", "--dry-run", "--p", "/r", "=", "-p1"]),
        st.text(max_size=8).map(lambda text: "--" + text),
        st.text(max_size=8),
    ),
    max_size=8,
)


@given(WORDS)
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    for rows, in_order in ((options.GLOBAL, True), (options.CONFIGURE, False)):
        try:
            parsed = parse("p", words, rows, in_order=in_order)
        except ArgumentError as error:
            assert error.message
        else:
            assert all(option in rows for option, _ in parsed.events)
