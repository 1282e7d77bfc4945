"""Random harmless calls: the simulated driver answers as an H100's did (tests/gpu/driver_statuses.sh)."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from tests.support.native import build

RECORDED = Path(__file__).with_name("driver-statuses-580.159.04.txt")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(build() / "driver_statuses"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_calls_are_the_same_again_and_of_many_kinds(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in one, other:
        path.write_text(run("sim", "580.159.04", 100, 1).stdout)

    compared = run("compare", one, other)
    statuses = Counter(line.rpartition(": ")[2] for line in one.read_text().splitlines())

    assert (compared.returncode, compared.stdout) == (0, "4000 calls compared, 0 different\n")
    assert {"0", "0x19", "0x1f", "0x23", "0x36", "0x57"} <= statuses.keys()
    assert statuses["0"] > 1000


def test_each_call_is_answered_as_by_the_driver_of_an_h100() -> None:
    """The file has a line for each sequence from seed 1 on, with the statuses of its calls as the driver gave them."""
    recorded = [line.split() for line in RECORDED.read_text().splitlines()]
    said = run("sim", "580.159.04", len(recorded), 1).stdout.splitlines()

    calls = len(recorded[0])
    wrong = [
        f"{line}, the driver: 0x{status}"
        for place, line in enumerate(said)
        if (status := recorded[place // calls][place % calls]) != line.rpartition(": ")[2].removeprefix("0x")
    ]
    assert len(said) == calls * len(recorded) == 8000
    assert not wrong


def test_a_difference_ends_its_sequence_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("0 0 client: 0\n0 1 free: 0\n0 2 free: 0x33\n1 0 client: 0\n")
    other.write_text("0 0 client: 0\n0 1 free: 0x57\n0 2 free: 0\n1 0 client: 0\n")

    compared = run("compare", one, other)

    assert compared.returncode == 1
    assert compared.stdout == "- 0 1 free: 0\n+ 0 1 free: 0x57\n3 calls compared, 1 different\n"
