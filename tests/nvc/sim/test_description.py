"""Descriptions: those that ship are right, those that are wrong are refused by name of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.driver import tables
from nvc.sim import files
from nvc.sim.description import MigLayout, checked, load, names


@pytest.mark.parametrize("name", names())
def test_shipped_descriptions_are_named_as_their_files(name: str) -> None:
    machine = load(name)
    assert machine.name == name
    assert len(machine.summary) > 20
    assert machine.gpus


def test_mig_profiles_give_slices_and_memory() -> None:
    assert MigLayout("u", "3g.40gb", 1, 0).slices == (3, 3)
    assert MigLayout("u", "2c.3g.40gb", 1, 0).slices == (3, 2)
    assert MigLayout("u", "1g.10gb", 1, 0).memory == 10 << 30


CHANGES = [
    ("name", "../x", "name"),
    ("driver_version", "580/../../x", "driver_version"),
    ("driver_version", "580", "driver_version"),
    ("cuda_version", 13, "cuda_version"),
    ("cuda_version", "13000", "cuda_version"),
    ("nvrm", "two\nlines", "nvrm"),
    ("majors", {"nvidia": 0}, "majors.nvidia"),
    ("majors", {"nvidia": 1 << 32}, "majors.nvidia"),
    ("gpu_models", {}, "model"),
    ("sockets", ["/var/run/nvidia-persistenced/socket"], "sockets"),
    ("sockets", ["/run/../etc/x"], "sockets"),
    ("firmware", ["../gsp.bin"], "firmware"),
    ("extra", ["libunheard.so"], "extra"),
    ("without", ["/dev/../etc/passwd"], "without"),
    ("without", ["libunheard.so"], "without"),
    ("damage", {"libcuda.so": "burnt"}, "damage.libcuda.so"),
    ("damage", {"libunheard.so": "gone"}, "damage"),
    ("versions", {"libcuda.so": "x"}, "versions.libcuda.so"),
    ("imex_channels", [-1], "imex_channels"),
    ("faults", ["nvmlInit sulk"], "faults"),
    ("faults", ["nvmlInit_v2 hang"], "no function 'nvmlInit_v2'"),
    ("faults", ["nvmlInit hang"] * 9, "number of faults"),
    ("pageable", "on", "pageable"),
    ("colour", "red", "unknown field 'colour'"),
]


@pytest.mark.parametrize(("field", "value", "words"), CHANGES, ids=[f"{c[0]} {c[1]!r:.30}" for c in CHANGES])
def test_a_wrong_field_is_named(tmp_path: Path, field: str, value: Any, words: str) -> None:
    data = {**load("h200").as_data(), field: value}
    file = tmp_path / "own.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match=words):
        load(str(file))


GPU_CHANGES = [
    ("minor", 300, "minor"),
    ("bus_id", "1b:00.0", "bus_id"),
    ("bus_id", "0000:1B:00.0", "bus_id"),
    ("uuid", "GPU-1\nend=0", "uuid"),
    ("uuid", "", "uuid"),
    ("model", "NVIDIA H999", "model"),
    ("mig", [{"uuid": "MIG-1", "profile": "1g.10gb", "gi": 7, "ci": 0}], "mig_enabled is false"),
]


@pytest.mark.parametrize(("field", "value", "words"), GPU_CHANGES, ids=[f"{c[0]} {c[1]!r:.20}" for c in GPU_CHANGES])
def test_a_wrong_gpu_is_named(tmp_path: Path, field: str, value: Any, words: str) -> None:
    data = load("h200").as_data()
    data["gpus"][0][field] = value
    file = tmp_path / "own.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError, match=words):
        load(str(file))


@pytest.mark.parametrize("field", ["minor", "uuid", "bus_id"])
def test_two_gpus_cannot_share(field: str) -> None:
    machine = load("h100x8")
    first, second, *rest = machine.gpus
    with pytest.raises(InputError, match=f"{field}.* duplicate"):
        checked(machine.replace(gpus=(first, second.replace(**{field: getattr(first, field)}), *rest)))


@pytest.mark.parametrize(
    "mig",
    [
        pytest.param(MigLayout("MIG-1", "7x", 1, 0), id="profile"),
        pytest.param(MigLayout("MIG-1", "1g.5gb", 15, 0), id="gpu instance"),
        pytest.param(MigLayout("MIG-1", "1g.5gb", 0, 8), id="compute instance"),
    ],
)
def test_a_wrong_mig_device_is_refused(mig: MigLayout) -> None:
    machine = load("a100-mig-dev")
    gpu = machine.gpus[0].replace(mig=(mig,))
    with pytest.raises(InputError):
        checked(machine.replace(gpus=(gpu,)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param("{", id="cut off"),
        pytest.param("\x00", id="binary"),
        pytest.param("{}", id="no fields"),
    ],
)
def test_a_file_that_is_no_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.json").write_text(text)
    with pytest.raises(InputError, match=r"own\.json: "):
        load(str(tmp_path / "own.json"))


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="unknown machine: h300") as caught:
        load("h300")
    assert "h200" in caught.value.hint


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(str(tmp_path / "none.json"))


def test_machines_have_every_library_that_discovery_wants() -> None:
    wanted = {row.name for row in tables.LIBRARIES} - {"libdxcore.so"}  # WSL is no simulated machine yet
    assert wanted <= {row.name for row in files.LIBRARIES}
