"""Random sequences of what hostile programs can do, on the guard's own code and the simulated manager in one process.

``NVC_SEQUENCES`` and ``NVC_SEQUENCES_SEED`` set how many there are and which; ``make soak-sequences`` runs more.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.native import CHECKOUT, build

COUNT = int(os.environ.get("NVC_SEQUENCES", "2500"))
SEED = int(os.environ.get("NVC_SEQUENCES_SEED", "1"))
#: What the guard does not promise: page tables (docs/user/guard.md).
NOT_PROMISED = "tables"
#: Ways that the guard does not close yet, by the file that shows each. One that is closed fails here: off the list.
OPEN = {
    "n52-raced-onto-another-file",
    "n53-raced-onto-a-passed-file",
    "n57-raced-group-on-a-passed-file",
}
RECORDED = sorted((CHECKOUT / "tests" / "native" / "sequences").glob("*.txt"))


def run(*arguments: object, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    command = [str(build() / "guard_sequences"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.timeout(max(120, COUNT // 5))
def test_nothing_is_held_uncharged_or_computes_unscheduled() -> None:
    half = (COUNT + 1) // 2

    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(lambda seed: run("run", half, seed, NOT_PROMISED, seconds=max(100, half)), (SEED, SEED + half))
        )

    for each in done:
        assert each.returncode == 0, each.stdout + each.stderr
        assert each.stdout == f"{half} sequences, nothing found\n"


@pytest.mark.parametrize("sequence", RECORDED, ids=lambda path: path.stem)
def test_a_way_round_a_share_that_was_found_once(sequence: Path) -> None:
    done = run("replay", sequence, NOT_PROMISED)

    assert done.returncode == (sequence.stem in OPEN), done.stdout + done.stderr


def test_nothing_is_charged_that_is_not_there(tmp_path: Path) -> None:
    """Or whatever is held would be charged."""
    sequence = tmp_path / "sequence"
    sequence.write_text("start p0 c0 f1\nfork p0 f2\nstart p4 c6 f3\nwait f4\nwait f4\n")

    done = run("replay", sequence, NOT_PROMISED)

    charged = [line.split()[:2] for line in done.stdout.splitlines() if " status " in line]
    assert charged == [["0/0", "KiB"]] * 5, done.stdout


def test_what_a_container_passes_to_another_one_is_good_for_nothing(tmp_path: Path) -> None:
    sequence = tmp_path / "sequence"
    steps = ["start p0 c0 f1", "memory p0 d0 c0 o0 h11 z4", "pass p0 d0 q1 e6", "free p1 d6 c0 h11", "client p1 d6 c5"]
    sequence.write_text("\n".join([*steps, "wait f4", ""]))

    done = run("replay", sequence, NOT_PROMISED)

    assert done.returncode == 0, done.stdout
    charged, counted, _ = done.stdout.splitlines()[-3:]
    assert "foreign-file 2" in counted
    assert charged.split()[0] == "65536/65536", "nothing was freed"


def test_what_is_open_is_recorded() -> None:
    assert {path.stem for path in RECORDED} >= OPEN


def test_a_sequence_is_the_same_again(tmp_path: Path) -> None:
    """What is printed of a finding is a sequence in which it is found: here, that page tables are not charged."""
    found = run("run", 200, 1)
    sequence = tmp_path / "sequence"
    sequence.write_text(found.stdout)

    again = run("replay", sequence)

    assert found.returncode == again.returncode == 1
    assert "\n# tables: tenant " in found.stdout
    assert again.stdout.splitlines()[-1].startswith("tables: tenant ")


@pytest.mark.parametrize("line", ["steal p0", "memory p0", "client p0 d0 c1 ~0 memory p0 d0 c0 o0 h5 z1"])
def test_what_is_no_step_is_refused(tmp_path: Path, line: str) -> None:
    sequence = tmp_path / "sequence"
    sequence.write_text(line + "\n")

    done = run("replay", sequence)

    assert done.returncode == 2
    assert done.stderr == f"no step: {line}\n"
