"""Records: frozen values, and strict decoding of what comes from outside."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base import record
from nvc.base.record import DecodeError, Record
from nvc.model import DeviceNode, DriverFile, Gpu, Nvcap


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
    assert SampleUndecodable not in record._plans, "a class that cannot be decoded does not prevent the others"
    assert DeviceNode.from_data(NODE.as_data()) == NODE


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """Makes a module of a name and a source, importable until the test ends."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def make(name: str, source: str) -> Any:
        head = "from __future__ import annotations\nfrom nvc.base.record import Record\n"
        (tmp_path / f"{name}.py").write_text(head + source)
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in names:
        sys.modules.pop(name, None)


def test_an_annotation_means_the_class_of_its_own_module(make_module: Callable[[str, str], Any]) -> None:
    """Two modules have a class Part; decoding once took the one that was imported last."""
    source = "class Part(Record):\n    {}: int\nclass Whole(Record):\n    parts: tuple[Part, ...]\n"
    one = make_module("sample_one", source.format("x"))
    two = make_module("sample_two", source.format("y"))

    for made, field in ((one, "x"), (two, "y")):
        found = made.Whole.from_data({"parts": [{field: 1}]})
        assert made.Part is type(found.parts[0])


def test_a_class_that_outlives_its_module_keeps_none_from_being_prepared(
    make_module: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_module(
        "sample_gone", "class Part(Record):\n    x: int\nclass Whole(Record):\n    parts: tuple[Part, ...]\n"
    )
    named = make_module("sample_named", "import sample_gone\nclass Whole(Record):\n    part: sample_gone.Part\n")
    taken = make_module(
        "sample_taken", "class Whole(Record):\n    _modules = {'Part': 'sample_none'}\n    part: Part\n"
    )
    monkeypatch.delitem(sys.modules, "sample_gone")
    monkeypatch.setattr(record, "_plans", {})
    record.prepare()
    assert not {made.Whole, taken.Whole} & record._plans.keys()
    assert named.Whole in record._plans
    assert SampleTree in record._plans


def test_an_inherited_field_means_the_class_of_the_module_that_declares_it(
    make_module: Callable[[str, str], Any],
) -> None:
    base = make_module("sample_base", "class Part(Record):\n    x: int\nclass Base(Record):\n    part: Part\n")
    derived = make_module(
        "sample_derived",
        "from sample_base import Base\nclass Part(Record):\n    y: int\nclass Derived(Base):\n    own: Part\n",
    )

    found = derived.Derived.from_data({"part": {"x": 1}, "own": {"y": 2}})

    assert (base.Part, derived.Part) == (type(found.part), type(found.own))


def test_a_class_through_its_module_s_name(make_module: Callable[[str, str], Any]) -> None:
    other = make_module("sample_other", "class Part(Record):\n    x: int\n")
    user = make_module("sample_user", "import sample_other\nclass Whole(Record):\n    part: sample_other.Part\n")

    assert other.Part is type(user.Whole.from_data({"part": {"x": 1}}).part)


def test_a_class_that_is_imported_for_type_checkers_only_is_declared(make_module: Callable[[str, str], Any]) -> None:
    other = make_module("sample_other", "class Part(Record):\n    x: int\n")
    source = "class Whole(Record):\n    {}part: Part\n"
    declared = make_module("sample_declared", source.format("_modules = {'Part': 'sample_other'}\n    "))
    undeclared = make_module("sample_undeclared", source.format(""))

    assert other.Part is type(declared.Whole.from_data({"part": {"x": 1}}).part)
    with pytest.raises(TypeError, match=r"sample_undeclared\.Whole.* 'Part'"):
        undeclared.Whole.from_data({"part": {"x": 1}})


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
