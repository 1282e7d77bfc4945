"""The requirement language: every vector of libnvidia-container.md 1.7.5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import RequirementError
from nvc.request.requirements import Facts, check

FACTS = Facts(cuda="12.2", driver="535.104.05", arch="9.0", brand="Nvidia")
ADVICE = ", please update your driver to a newer version, or use an earlier cuda container"


@pytest.mark.parametrize(
    "expression",
    [
        "cuda>=12.2.0",
        "cuda<=12.2.1",
        "cuda>12",
        "CUDA>=11",
        "cuda>=12..2",
        "cuda>=12.2.",
        "cuda>=012.2",
        "",
        " ",
        ",",
        "cuda>=12.9 brand=nvidia,driver>=535,driver<536",
        "cuda>=12.0 zzz",
        "driver>=535.104.5",
        "driver<535.104.050",
        "driver=535.104.5.0.0",
        "brand!=tesla",
        "BRAND=NVIDIA",
        "arch>=9.0,arch<9.1",
        "cuda!=12.3",
        "cuda!12.3",
        "  cuda>=12.9   cuda>=12,,arch>=8 ",
        pytest.param("cuda<13." + "9" * 5000, id="five-thousand-digits-behind-a-difference"),
        pytest.param("cuda>" + "0" * 5000, id="five-thousand-zeros"),
    ],
)
def test_satisfied(expression: str) -> None:
    check(expression, FACTS)


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("cuda=12.2.1", "cuda=12.2.1"),
        ("cuda<12.2.0", "cuda<12.2.0"),
        ("cuda>12.2", "cuda>12.2"),
        ("cuda!12.2", "cuda!12.2"),
        ("driver>=535.104.06", "driver>=535.104.06"),
        ("brand=tesla,zzz=1", "brand=tesla,zzz=1"),
        ("cuda>=12.9 brand=tesla,driver>=470,driver<471", "cuda>=12.9" + ADVICE),
        (" cuda>=12.9,arch>=8 cuda=1", "cuda>=12.9,arch>=8" + ADVICE),
        ("brand!=nvidia", "brand!=nvidia"),
        pytest.param("cuda>13." + "9" * 5000, "cuda>13." + "9" * 5000, id="five-thousand-digits-behind-a-difference"),
        pytest.param("cuda>18446744073709551614", "cuda>18446744073709551614", id="64 bits"),
    ],
)
def test_unsatisfied_names_the_first_alternative(expression: str, condition: str) -> None:
    with pytest.raises(RequirementError) as caught:
        check(expression, FACTS)
    assert caught.value.message == f"unsatisfied condition: {condition[:500]}"
    assert "cuda=12.2 driver=535.104.05 arch=9.0 brand=Nvidia" in caught.value.hint


@pytest.mark.parametrize(
    "expression",
    [
        "cuda==12.2",
        "cuda=>12",
        "cuda<>12.2",
        "cuda>=12.x",
        "cuda>=.12",
        "cuda>=",
        ">=12",
        "cuda",
        "foo>=1",
        "brand>tesla",
        "cuda>= 12.0",
        "brand=",
        "cuda<12.18446744073709551615",
        "cuda>=99999999999999999999",
        "cuda>=12.9 zzz",
        "cuda>=\u0661\u0662",
        "cuda>=12=3",
        "csv-mounts=all",
    ],
)
def test_invalid(expression: str) -> None:
    with pytest.raises(RequirementError) as caught:
        check(expression, FACTS)
    assert caught.value.message == "invalid expression"
    assert expression.split(" ")[0].split("=")[0] in caught.value.hint or "zzz" in caught.value.hint


def test_two_equal_signs_get_a_hint() -> None:
    with pytest.raises(RequirementError) as caught:
        check("cuda==12.2", FACTS)
    assert "write = for equality" in caught.value.hint


@pytest.mark.parametrize("expression", ["arch>=99", "brand=tesla", "brand>tesla", "arch>=x"])
def test_conditions_on_a_device_hold_without_one(expression: str) -> None:
    check(expression, Facts(cuda="12.2", driver="535.104.05"))


def test_without_a_device_the_hint_says_nothing_about_one() -> None:
    with pytest.raises(RequirementError) as caught:
        check("cuda>=13", Facts(cuda="12.2", driver="535.104.05"))
    assert "arch" not in caught.value.hint


def test_a_version_of_the_driver_that_is_none_is_named() -> None:
    with pytest.raises(RequirementError, match="invalid expression") as caught:
        check("driver>=535", FACTS.replace(driver="unknown"))
    assert "'unknown' is not a version" in caught.value.hint


@given(st.text(max_size=60))
def test_any_text_is_decided_or_refused(expression: str) -> None:
    try:
        check(expression, FACTS)
    except RequirementError as error:
        assert error.message == "invalid expression" or error.message.startswith("unsatisfied condition: ")


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=4), st.lists(st.integers(0, 2000), min_size=1, max_size=4))
def test_versions_compare_as_numbers(ours: list[int], theirs: list[int]) -> None:
    size = max(len(ours), len(theirs))
    left, right = (numbers + [0] * (size - len(numbers)) for numbers in (ours, theirs))
    facts = FACTS.replace(driver=".".join(map(str, ours)))
    wanted = ".".join(map(str, theirs))
    for operator, expected in (("<", left < right), ("=", left == right), (">", left > right)):
        try:
            check(f"driver{operator}{wanted}", facts)
            held = True
        except RequirementError:
            held = False
        assert held == expected
