"""The two sides of the machine text: what Python writes the C side reads, and nothing makes the C side fall over."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvc.sim.description import PAGEABLE, load, names
from nvc.sim.machine_text import LIMIT, machine_text
from tests.support.native import CHECKOUT

#: No machine has all keys; this is the text of none that can be.
EVERYTHING = load("a100-mig-dev").replace(faults=("nvmlInit slow 3",), platform="wsl", store="nv", pageable="ats")
WHOLE = machine_text(EVERYTHING, nodes=True).encode()
SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def parse(templates: Path, text: bytes) -> str:
    """What the C reader says. A crash fails the test."""
    done = subprocess.run([templates / "parse_stdin"], input=text, capture_output=True, timeout=10, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout.decode().strip()


@pytest.mark.parametrize("nodes", [True, False])
@pytest.mark.parametrize("name", names())
def test_every_machine_is_read(templates: Path, name: str, nodes: bool) -> None:
    assert parse(templates, machine_text(load(name), nodes=nodes).encode()) == "ok"


def test_both_sides_know_the_same_keys() -> None:
    source = (CHECKOUT / "native/sim/machine_parse.c").read_text()
    known = set(re.findall(r"\b(?:SYSTEM|GPU|MIG) \(KIND_\w+, (\w+),", source))
    known |= {"nvc-sim-machine", "gpu", "mig", "fault", "end"}
    assert known == {line.split("=")[0] for line in WHOLE.decode().splitlines()}


@pytest.mark.parametrize("word", PAGEABLE)
def test_both_sides_know_the_same_words_for_pageable_memory(templates: Path, word: str) -> None:
    assert parse(templates, machine_text(load("h200").replace(pageable=word), nodes=True).encode()) == "ok"


def test_both_sides_know_the_same_limit() -> None:
    assert f"#define MACHINE_TEXT_LIMIT ({LIMIT // 1024} * 1024)" in (CHECKOUT / "native/sim/machine.h").read_text()


@SETTINGS
@given(data=st.data())
def test_a_spoilt_description_is_read_or_refused_with_a_line(templates: Path, data: st.DataObject) -> None:
    text = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        text[place : place + data.draw(st.integers(0, 12))] = data.draw(st.binary(max_size=8))
    assert re.fullmatch(r"ok|line \d+: .+", parse(templates, bytes(text)))


@SETTINGS
@given(lines=st.lists(st.sampled_from([*WHOLE.splitlines(), b"gpu=0", b"mig=0", b"end=0", b"=", b""]), max_size=60))
def test_lines_in_any_order_are_read_or_refused(templates: Path, lines: list[bytes]) -> None:
    answer = parse(templates, b"".join(line + b"\n" for line in lines))
    assert re.fullmatch(r"ok|line \d+: .+", answer)


@SETTINGS
@given(text=st.binary(max_size=400))
def test_random_bytes_are_refused(templates: Path, text: bytes) -> None:
    assert parse(templates, text).startswith("line ")


def test_a_description_over_the_limit_is_refused(templates: Path) -> None:
    assert "too large" in parse(templates, WHOLE + b"#" * LIMIT)
