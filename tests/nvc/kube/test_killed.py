"""kill -9 at every system call of prepare and unprepare: the whole file is there or none, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from nvc.cdi.generate import GenerateOptions
from nvc.kube import claims, prepare
from nvc.kube.devices import devices
from nvc.kube.edits import template
from nvc.kube.records import Records
from nvc.model import Host
from nvc.share.policy import Policy
from tests.nvc.kube.conftest import NODE, SHARE, Machine
from tests.support.killed import killed_at

UID = "5b0ddbc6-5a1e-4b4a-9b9a-0a2f4e6c8d10"


@pytest.fixture
def machine(sim: Callable[[str], Host]) -> prepare.Machine:
    found = Machine(sim("h100x8")).find()
    made = template(found, sim("h100x8"), GenerateOptions())
    return prepare.Machine(devices(found), {gpu.uuid: gpu for gpu in found.gpus}, made)


def claim() -> claims.Claim:
    row = {"driver": "gpu.nvc.dev", "pool": NODE, "request": "gpu", **SHARE}
    data = {
        "metadata": {"uid": UID, "namespace": "space", "name": "claim"},
        "status": {"allocation": {"devices": {"results": [row]}}},
    }
    return claims.decode(data, UID, NODE)


def test_at_every_call_of_prepare(tmp_path: Path, machine: prepare.Machine) -> None:
    records = Records(str(tmp_path / "cdi"))
    prepare.rewrite(records, machine, lambda _: None)
    expected = prepare.prepare(claim(), machine, records, Policy())
    whole = Path(records.path(UID)).read_bytes()
    call, seen = 0, set()
    while True:
        prepare.unprepare(UID, records)
        killed = killed_at(call, lambda: prepare.prepare(claim(), machine, records, Policy()))
        path = Path(records.path(UID))
        assert not path.exists() or whole == path.read_bytes(), f"killed at call {call}"
        seen.add(path.exists())
        if not killed:
            break
        assert expected == prepare.prepare(claim(), machine, records, Policy()), "the kubelet asks again"
        assert whole == path.read_bytes()
        call += 1
    assert {True, False} == seen
    assert call > 15, "the calls of prepare"
    print(f"prepare was killed at {call} system calls")
    assert 1 == prepare.rewrite(records, machine, lambda _: None), "the next process of the driver"
    left = sorted(one.name for one in (tmp_path / "cdi").iterdir())
    assert [".lock", path.name, "nvc.dev-driver.yaml"] == left


def test_at_every_call_of_unprepare(tmp_path: Path, machine: prepare.Machine) -> None:
    records = Records(str(tmp_path / "cdi"))
    call = 0
    while True:
        prepare.prepare(claim(), machine, records, Policy())
        if not killed_at(call, lambda: prepare.unprepare(UID, records)):
            break
        found = records.read(UID)
        assert found is None or yaml.safe_load(Path(records.path(UID)).read_text())["kind"] == "nvc.dev/claim"
        prepare.unprepare(UID, records)
        assert [".lock"] == [one.name for one in (tmp_path / "cdi").iterdir()]
        call += 1
    assert call > 4
    print(f"unprepare was killed at {call} system calls")
