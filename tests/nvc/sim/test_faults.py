"""Faults of the simulated NVML: those that it has, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvc.base.errors import InputError
from nvc.sim import faults

SOURCES = Path(__file__).parents[3] / "native/sim"


def test_the_functions_are_those_that_look_for_faults() -> None:
    found = {"nvmlInit"}
    for path in SOURCES.glob("nvml_*.c"):
        for name, body in re.findall(
            r"^nvmlReturn_t (nvml[A-Z]\w+) \([^)]*\)\s*\{(.*?)^\}", path.read_text(), re.M | re.S
        ):
            if re.search(r"\bENTER(_DEVICE)? \(|\bnvml_enter \(__func__\)", body):
                found.add(name)
    assert sorted(found) == list(faults.FUNCTIONS)
    assert 'nvml_fault ("nvmlInit")' in (SOURCES / "nvml_state.c").read_text()


@pytest.mark.parametrize("what", ["hang", "crash", "error 15", "slow 500"])
def test_what_goes_wrong(what: str) -> None:
    faults.check(f"nvmlDeviceGetName {what}", "faults")


@pytest.mark.parametrize(
    ("fault", "message", "hint"),
    [
        ("nvmlFoo hang", "no function 'nvmlFoo'", "there are nvmlComputeInstanceGetInfo, "),
        ("nvmlInit_v2 hang", "no function 'nvmlInit_v2'", "did you mean nvmlInit?"),
        ("", "no function ''", "there are "),
        ("nvmlInit", "'nvmlInit' does not say what goes wrong", "write nvmlInit hang | crash | error NUMBER | slow "),
        ("nvmlInit hang 3", "does not say", "write "),
        ("nvmlInit hang\nend=0", "does not say", "write "),
        ("nvmlInit\nend=0 hang", "no function 'nvmlInit\\\\nend=0'", "there are "),
    ],
)
def test_other_words_are_refused(fault: str, message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        faults.check(fault, "faults")
    assert caught.value.hint.startswith(hint)
