"""``nvc-py sim``: its words, its output and its help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvc.base.errors import InputError
from nvc.cli.sim import sim
from nvc.sim import host
from nvc.sim.description import MachineDescription, load, names


def run(*words: str) -> str:
    result = CliRunner().invoke(sim, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_every_machine_on_one_line() -> None:
    assert [line.split()[0] for line in run("list").splitlines()] == list(names())
    rows = json.loads(run("list", "--json"))
    assert {row["name"]: row["gpus"] for row in rows}["h100x8"] == 8


@pytest.mark.parametrize("name", names())
def test_describe_shows_everything_and_says_simulated(name: str) -> None:
    text = run("describe", name)
    assert text.startswith(f"SIMULATED machine {name}: ")
    assert all(gpu.uuid in text for gpu in load(name).gpus)


def test_describe_json_is_a_description_that_create_takes(templates: Path, tmp_path: Path) -> None:
    text = run("describe", "imex", "--json")
    assert MachineDescription.from_data(json.loads(text)) == load("imex")
    (tmp_path / "mine.json").write_text(text.replace('"name": "imex"', '"name": "mine"'))
    run("create", str(tmp_path / "m"), "--machine", str(tmp_path / "mine.json"))
    assert host(str(tmp_path / "m")).simulated == "mine"


def test_create_says_what_to_do_next_and_plants_faults(templates: Path, tmp_path: Path) -> None:
    output = run("create", str(tmp_path / "m"), "-m", "h200", "--fault", "nvmlInit hang")
    assert f"--sim {tmp_path}/m list" in output
    assert "SIMULATED machine h200" in output
    assert "\nfault=nvmlInit hang\n" in (tmp_path / "m/etc/nvc-sim/machine").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "{d}/m", "-m", "h300"], "unknown machine: h300"),
        (["create", "{d}/m", "-m", "h200", "--fault", "x"], "faults: the simulated NVML has no function 'x'"),
        (["create", "{d}/m", "-m", "h200", "--fault", "nvmlInit hang 3"], "'nvmlInit hang 3' does not say what"),
        (["describe", "h300"], "unknown machine: h300"),
    ],
    ids=["machine", "function", "fault", "describe"],
)
def test_wrong_words_are_errors_with_a_message(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(sim, [word.format(d=tmp_path) for word in words], catch_exceptions=False)
    assert not (tmp_path / "m").exists()


def test_help_teaches() -> None:
    assert "nvc-py sim create /tmp/machine --machine h200" in run("--help")
    text = run("create", "--help")
    assert "Device nodes can only be made by root" in text
    assert "nvmlInit hang" in text
