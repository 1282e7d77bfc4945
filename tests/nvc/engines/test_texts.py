"""The two text editors against plain data: whatever is asked of whatever file, the tables are those that were meant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvc.engines import jsontext, tomltext
from nvc.engines.changes import Change, applied, same

KEYS = st.sampled_from(["a", "b", "c d", "e.f", "ü", '"'])
SCALARS = st.one_of(
    st.booleans(), st.integers(-9, 9), st.text("ab\n\"'\\ü#=[]{}", max_size=6), st.lists(st.integers(0, 3))
)
TREES = st.recursive(
    st.dictionaries(KEYS, SCALARS, max_size=3), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)
VALUES = st.one_of(SCALARS, TREES)


@settings(max_examples=150, deadline=None)
@given(tree=TREES, path=PATHS, value=VALUES, indent=st.sampled_from([None, 1, 2, "\t"]))
def test_json_set_and_unset(tree: dict[str, object], path: tuple[str, ...], value: object, indent: object) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=False)  # type: ignore[arg-type]
    try:
        wanted = applied(tree, [Change(path, value)])
    except ValueError:
        return
    changed = jsontext.apply(text, [Change(path, value)])

    assert same(wanted, json.loads(changed))
    assert same(applied(wanted, [Change(path)]), json.loads(jsontext.apply(changed, [Change(path)])))


@settings(max_examples=60, deadline=None)
@given(tree=TREES, path=PATHS, value=VALUES)
def test_toml_set_and_unset(tree: dict[str, object], path: tuple[str, ...], value: object) -> None:
    import tomlkit

    text = tomlkit.dumps(tree)
    try:
        wanted = applied(tree, [Change(path, value)])
        changed = tomltext.apply(text, [Change(path, value)])
    except ValueError as error:
        assert "is not a table" in str(error) or "cannot be changed" in str(error)
        return

    assert same(wanted, tomltext.parse(changed))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{\n "a": 1,\n}', "line [23]", id="comma-too-many"),
        pytest.param('{\n // words\n "a": 1}', "line 2", id="comment"),
        pytest.param("[]", "not a JSON object", id="array"),
        pytest.param('{"a": 1} {"b": 2}', "line 1, column 10", id="two-values"),
        pytest.param('{"a": {"b": 1, "b": 2}}', "'b' twice", id="key-twice"),
        pytest.param('{"a": ' + "[" * 100_000, "too deep", id="deep"),
        pytest.param('{"a": "\x00"}', "line 1", id="control-character"),
    ],
)
def test_json_that_is_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jsontext.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a = 1\nb =\n", "line 2", id="value-missing"),
        pytest.param("a = 1\n[t\n", "line 2", id="header-open"),
        pytest.param("[a]\n[a]\n", "line 2", id="table-twice"),
        pytest.param("a = 1\na = 2\n", "line 2", id="key-twice"),
        pytest.param('\n\na = """\nx', "line 4", id="string-open"),
        pytest.param("a = " + "[" * 100_000, "too deep", id="deep"),
    ],
)
def test_toml_that_is_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tomltext.parse(text)


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        pytest.param("{}", ("a",), 1, '{\n    "a": 1\n}', id="empty"),
        pytest.param('{ "a": 1 }', ("b",), [], '{ "a": 1, "b": [] }', id="one-line"),
        pytest.param(
            '{\n\t"a": {}\n}\n',
            ("a", "b"),
            {"c": 1},
            '{\n\t"a": {\n\t\t"b": {\n\t\t\t"c": 1\n\t\t}\n\t}\n}\n',
            id="tabs",
        ),
        pytest.param('{"a" : 1.50}', ("b", "c"), True, '{"a" : 1.50, "b": {"c": true}}', id="number-kept-as-written"),
        pytest.param('{\n  "a": "\\u00e4"\n}', ("a",), "ö", '{\n  "a": "ö"\n}', id="replaced"),
    ],
)
def test_json_layout(before: str, path: tuple[str, ...], value: object, after: str) -> None:
    assert after == jsontext.apply(before, [Change(path, value)])


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        pytest.param('{"a": 1, "b": 2, "c": 3}', ("a",), '{"b": 2, "c": 3}', id="first"),
        pytest.param('{"a": 1, "b": 2, "c": 3}', ("b",), '{"a": 1, "c": 3}', id="middle"),
        pytest.param('{\n  "a": 1,\n  "b": 2\n}', ("b",), '{\n  "a": 1\n}', id="last"),
        pytest.param('{"a": {"b": {"x": 1}}}', ("a", "b"), '{"a": {}}', id="only"),
        pytest.param('{"a": 1}', ("b", "c"), '{"a": 1}', id="missing"),
    ],
)
def test_json_unset_layout(before: str, path: tuple[str, ...], after: str) -> None:
    assert after == jsontext.apply(before, [Change(path)])
