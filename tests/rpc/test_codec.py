"""JSON without the json package: what goes in comes out, and everything wrong is an error with its place."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc import codec

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@pytest.fixture(params=["accelerated", "plain"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as it is, and as it is on an interpreter without ``_json``."""
    if request.param == "accelerated":
        return codec
    monkeypatch.setitem(sys.modules, "_json", None)
    spec = importlib.util.spec_from_file_location("rpc_codec_plain", codec.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@given(VALUES)
def test_a_value_survives(value: Any) -> None:
    assert value == codec.loads(codec.dumps(value))


@given(VALUES)
def test_the_text_is_what_json_writes(value: Any) -> None:
    assert json.dumps(value, separators=(",", ":")).encode() == codec.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("a\udc80\udcffb", id="file name that is not UTF-8"),
        pytest.param("\u00e4\U0001f600\x00\x1f", id="beyond ASCII, control characters"),
        pytest.param({"a": [1, {"b": [None, True, 1.5, "x"]}]}, id="nested"),
        pytest.param(2**64, id="more than 64 bits"),
    ],
)
def test_odd_values_survive(either: ModuleType, value: Any) -> None:
    assert value == either.loads(either.dumps(value))


def test_a_tuple_becomes_a_list(either: ModuleType) -> None:
    assert b'[1,[2,"x"]]' == either.dumps((1, (2, "x")))


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param({1, 2}, "a set cannot be sent", id="set"),
        pytest.param([b"x"], "a bytes cannot be sent", id="bytes"),
        pytest.param(float("nan"), "not JSON compliant", id="NaN"),
        pytest.param(float("-inf"), "not JSON compliant", id="infinity"),
        pytest.param(circle(), "Circular reference", id="circle"),
        pytest.param(deep(), "nested too deeply", id="depth"),
        pytest.param({(1, 2): 3}, "keys must be str", id="tuple as key"),
    ],
)
def test_what_json_cannot_carry_is_refused(either: ModuleType, value: Any, message: str) -> None:
    with pytest.raises(either.CodecError, match=message):
        either.dumps(value)


@pytest.mark.parametrize(
    ("data", "message", "position"),
    [
        pytest.param(b"", "a value is missing at line 1 column 1", 0, id="empty"),
        pytest.param(b" \t\r\n ", "a value is missing at line 2 column 2", 5, id="only space"),
        pytest.param(b'{"a":1}x', "more text after the value at line 1 column 8", 7, id="trailing junk"),
        pytest.param(b'{"a":1}\n {}', "more text after the value at line 2 column 2", 9, id="second value"),
        pytest.param(b'{"a":\n}', "at line 2 column 1", 6, id="value missing in an object"),
        pytest.param(b"[1,", "a value is missing at line 1 column 4", 3, id="cut list"),
        pytest.param(b'"abc', "unterminated string starting at at line 1 column 1", 0, id="cut string"),
        pytest.param(b'"a\nb"', "invalid control character at at line 1 column 3", 2, id="newline in a string"),
        pytest.param(b'{"a" 1}', "expecting ':' delimiter at line 1 column 6", 5, id="no colon"),
        pytest.param(b"nul", "a value is missing at line 1 column 1", 0, id="half a word"),
        pytest.param(b'"\xff"', "not UTF-8 at byte 1", 1, id="not UTF-8"),
        pytest.param(b"\xef\xbb\xbf{}", "a value is missing at line 1 column 1", 0, id="byte order mark"),
        pytest.param(b"NaN", "NaN is not JSON", -1, id="NaN"),
        pytest.param(b"[-Infinity]", "-Infinity is not JSON", -1, id="infinity"),
        pytest.param(b"1" * 5000, "4300", -1, id="number without end"),
        pytest.param(b"[" * 100_000, "nested too deeply", -1, id="depth"),
    ],
)
def test_text_that_is_not_json_is_refused_with_its_place(
    either: ModuleType, data: bytes, message: str, position: int
) -> None:
    with pytest.raises(either.CodecError) as caught:
        either.loads(data)
    assert message in str(caught.value)
    assert position == caught.value.position


def test_text_and_bytes_are_the_same(either: ModuleType) -> None:
    assert {"ä": 1} == either.loads('\n{"ä": 1}\n') == either.loads(' {"ä": 1} '.encode())


def test_more_than_the_limit_is_refused_before_it_is_read() -> None:
    assert "abc" == codec.loads(b'"abc"', limit=5)
    with pytest.raises(codec.CodecError, match="6 bytes of JSON, more than the limit of 5"):
        codec.loads(b"[[[[[[", limit=5)
