"""Records: frozen values, and strict decoding of what comes from outside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc import record
from nvc.model import DeviceNode, DriverFile, Gpu, Nvcap
from nvc.record import DecodeError, Record


class SamplePair(Record):
    name: str
    size: tuple[int, int] = (0, 0)


class SampleTree(Record):
    pairs: tuple[SamplePair, ...] = ()
    by_name: dict[str, SamplePair] = {}
    note: str | None = None
    weight: float = 1.0


NODE = DeviceNode("/dev/nvidia0", 195, 0)


def test_fields_may_be_given_by_place_or_by_name() -> None:
    assert SamplePair("a", (1, 2)) == SamplePair(size=(1, 2), name="a")


@pytest.mark.parametrize(
    ("values", "named", "complaint"),
    [
        pytest.param((), {}, "needs name", id="missing"),
        pytest.param(("a", (1, 2), 3), {}, "takes 2 values", id="too-many"),
        pytest.param(("a",), {"name": "b"}, "got name twice", id="twice"),
        pytest.param(("a",), {"colour": "b"}, "no field colour", id="unknown"),
    ],
)
def test_wrong_construction_is_refused(values: tuple[Any, ...], named: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        SamplePair(*values, **named)


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        NODE.minor = 1  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del NODE.minor


def test_replace_changes_only_the_named_field() -> None:
    assert DeviceNode("/dev/nvidia0", 195, 7) == NODE.replace(minor=7)
    assert NODE.minor == 0


def test_equality_needs_the_same_class() -> None:
    assert SamplePair("a") != NODE
    assert len({NODE, NODE.replace(), NODE.replace(minor=1)}) == 2


def test_data_survives_json() -> None:
    tree = SampleTree((SamplePair("a", (1, 2)),), {"x": SamplePair("b")}, "n", 2)

    assert SampleTree.from_data(json.loads(json.dumps(tree.as_data()))) == tree


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param([], "SampleTree: expected an object", id="list"),
        pytest.param({"colour": 1}, "unknown field 'colour'", id="unknown-field"),
        pytest.param({"pairs": {}}, r"SampleTree.pairs: expected a list", id="object-for-list"),
        pytest.param({"pairs": [{}]}, r"SampleTree.pairs\[0\]: missing field 'name'", id="nested-missing"),
        pytest.param({"pairs": [{"name": 1}]}, r"pairs\[0\].name: expected str, got int", id="nested-type"),
        pytest.param({"pairs": [{"name": "a", "size": [1]}]}, "expected a list of 2", id="short-tuple"),
        pytest.param({"pairs": [{"name": "a", "size": [1, True]}]}, r"size\[1\]: expected int", id="bool-is-no-int"),
        pytest.param({"note": 5}, "SampleTree.note: expected", id="union"),
        pytest.param({"by_name": []}, "by_name: expected an object", id="mapping"),
        pytest.param({"weight": "1"}, "weight: expected float", id="float"),
    ],
)
def test_decoding_names_the_field(data: object, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        SampleTree.from_data(data)


def test_an_annotation_that_json_cannot_carry_is_a_programming_error() -> None:
    class SampleWrong(Record):
        when: complex

    with pytest.raises(TypeError, match="complex"):
        SampleWrong.from_data({"when": 1})


def test_what_is_prepared_decodes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class SampleUndecodable(Record):
        when: complex

    monkeypatch.setattr(record, "_plans", {})
    record.prepare()

    assert {SampleTree, SamplePair, DeviceNode} <= record._plans.keys()
    assert SampleUndecodable not in record._plans, "one that cannot be decoded is no obstacle for others"
    assert DeviceNode.from_data(NODE.as_data()) == NODE


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(json_values)
def test_any_json_decodes_or_is_refused_by_name(data: object) -> None:
    for kind in (Gpu, DriverFile, Nvcap, SampleTree):
        try:
            value = kind.from_data(data)
        except DecodeError as error:
            assert str(error).startswith(kind.__name__)
        else:
            assert value.as_data().keys() >= (data.keys() if isinstance(data, dict) else set())
