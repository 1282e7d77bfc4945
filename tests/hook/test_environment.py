"""Does a container want a GPU, and which (nvidia-container-toolkit.md 1.5 and 1.6.1)?"""

from __future__ import annotations

import pytest

from hook.environment import chosen, is_legacy_image, is_true, items, parse, visible_devices
from nvc.base.errors import InputError

LEGACY = {"CUDA_VERSION": "9.0.176"}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([], {}, id="none"),
        pytest.param(["A=1", "B=2"], {"A": "1", "B": "2"}, id="two"),
        pytest.param(["A=1", "A=2"], {"A": "2"}, id="last of two wins"),
        pytest.param(["A=x=y"], {"A": "x=y"}, id="= in the value"),
        pytest.param(["A="], {"A": ""}, id="empty value"),
        pytest.param(["=x"], {"": "x"}, id="empty name"),
    ],
)
def test_parse(entries: list[str], expected: dict[str, str]) -> None:
    assert expected == parse(entries)


@pytest.mark.parametrize("entry", ["A", "", "x" * 100_000])
def test_entry_without_equals_sign_is_named(entry: str) -> None:
    with pytest.raises(InputError, match=r"process\.env\[1\].*no '='") as caught:
        parse(["A=1", entry])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("all", ("all",), id="all"),
        pytest.param("none", (), id="none: driver without a GPU"),
        pytest.param("void", None, id="void: no GPU container"),
        pytest.param("", None, id="empty"),
        pytest.param(" , ,,", None, id="only commas and blanks"),
        pytest.param("0,1", ("0", "1"), id="indexes"),
        pytest.param(" 0 , 1 ", ("0", "1"), id="trimmed"),
        pytest.param("0,,1,", ("0", "1"), id="empty items dropped"),
        pytest.param("1,0", ("1", "0"), id="order kept"),
        pytest.param("0,0", ("0",), id="Q1: a duplicate does not become an empty string"),
        pytest.param("0,1,0", ("0", "1"), id="first of equal ones kept"),
        pytest.param("GPU-1,MIG-2,0:1", ("GPU-1", "MIG-2", "0:1"), id="uuids and MIG index"),
        pytest.param("0,void", None, id="void anywhere"),
        pytest.param("all,void", None, id="void after all"),
        pytest.param("none,void", None, id="void after none"),
        pytest.param("0,all,none", ("all",), id="all before none"),
        pytest.param("0,none,all", (), id="none before all"),
        pytest.param("all,0", ("all",), id="rest after all ignored"),
        pytest.param("none,0", (), id="rest after none ignored"),
        pytest.param("0, all", ("all",), id="all with a blank"),
        pytest.param("ALL", ("ALL",), id="other case is left to the selection"),
        pytest.param("nvidia.com/gpu=0", ("nvidia.com/gpu=0",), id="CDI name is left to the selection"),
    ],
)
def test_visible_devices(value: str, expected: tuple[str, ...] | None) -> None:
    assert expected == visible_devices({"NVIDIA_VISIBLE_DEVICES": value})
    assert expected == chosen(value)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({}, None, id="nothing set"),
        pytest.param(LEGACY, ("all",), id="legacy image gets all"),
        pytest.param({**LEGACY, "NVIDIA_VISIBLE_DEVICES": ""}, None, id="legacy image, set but empty"),
        pytest.param({**LEGACY, "NVIDIA_VISIBLE_DEVICES": "1"}, ("1",), id="legacy image that says"),
        pytest.param({**LEGACY, "NVIDIA_REQUIRE_CUDA": "cuda>=9"}, None, id="newer CUDA image asks for nothing"),
        pytest.param({"CUDA_VERSION": ""}, None, id="empty CUDA_VERSION"),
        pytest.param({"NVIDIA_DRIVER_CAPABILITIES": "all"}, None, id="capabilities alone ask for nothing"),
    ],
)
def test_images_that_do_not_say(env: dict[str, str], expected: tuple[str, ...] | None) -> None:
    assert expected == visible_devices(env)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, False),
        ({"CUDA_VERSION": "9"}, True),
        ({"CUDA_VERSION": ""}, False),
        ({"CUDA_VERSION": "9", "NVIDIA_REQUIRE_CUDA": ""}, True),
        ({"CUDA_VERSION": "9", "NVIDIA_REQUIRE_CUDA": "cuda>=9"}, False),
    ],
)
def test_legacy_image(env: dict[str, str], expected: bool) -> None:
    assert expected is is_legacy_image(env)


@pytest.mark.parametrize("value", ["1", "t", "T", "TRUE", "true", "True"])
def test_true(value: str) -> None:
    assert is_true(value)


@pytest.mark.parametrize("value", ["", "0", "f", "F", "FALSE", "false", "False", "yes", "tRUE", " true", "on"])
def test_everything_else_is_false(value: str) -> None:
    assert not is_true(value)


def test_items_are_trimmed_and_unique() -> None:
    assert items(" a,b , a,,c") == ("a", "b", "c")
