"""Which GPUs config.json gives, whatever names a tenant's mounts leave of them in the container."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import DeviceError
from nvc.cdi.given import Given, given
from nvc.model import DeviceNode, Gpu

NONE = {"allow": False, "access": "rwm"}
MAKE = {"allow": True, "type": "c", "access": "m"}


def gpu(minor: int) -> Gpu:
    return Gpu(0, minor, "", "", f"GPU-{minor}", "", "", DeviceNode(f"/dev/nvidia{minor}", 195, minor), "")


def of(*mounts: dict[str, Any], devices: object = (), rules: object = (), **options: Any) -> Given:
    linux = {"devices": devices, "resources": {"devices": rules}}
    return given({"linux": linux, "mounts": list(mounts)}, options.pop("bundle", "/"), **options)


def bind(source: object, destination: str = "/data", *options: str) -> dict[str, Any]:
    return {"destination": destination, "source": str(source), "type": "bind", "options": ["bind", *options]}


@pytest.fixture
def sim(tmp_path: Path) -> Path:
    """The /dev of a simulated machine whose nodes are files."""
    (tmp_path / "m/dev").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "m/dev" / name).touch()
    return tmp_path / "m"


def node(minor: object, path: str = "/dev/nvidia0", major: object = 195, kind: str = "c") -> dict[str, Any]:
    return {"path": path, "type": kind, "major": major, "minor": minor}


@pytest.mark.parametrize("path", ["/dev/nvidia0", "/dev/gpu0", "/dev/x/nvidia0", "/dev/nvidia000000", "//dev/nvidia7"])
def test_a_node_is_known_by_its_number(path: str) -> None:
    assert of(devices=[node(0, path), node(3, "/dev/nvidia1")]) == Given((0, 3))


def test_the_drivers_other_nodes_are_no_gpus() -> None:
    others = [node(255), node(254), node(0, major=10), node(0, kind="b"), node("0"), None, {}]
    assert not of(devices=others)
    assert not of(devices={"a": 1})
    assert not given({}, "/")
    assert not given({"linux": [], "mounts": {}}, "/")


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([NONE, MAKE], Given()),
        ([NONE, {"allow": True, "type": "c", "major": -1, "minor": -1, "access": "m"}], Given()),
        ([NONE, {"allow": True, "type": "c", "major": 195, "minor": 255, "access": "rw"}], Given()),
        ([NONE, {"allow": True, "type": "c", "major": 10, "access": "rwm"}], Given()),
        ([NONE, {"allow": True, "type": "b", "access": "rwm"}], Given()),
        ([{"allow": True, "access": "rwm"}, NONE], Given()),
        ([NONE, {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rwm"}], Given((1,))),
        ([NONE, {"allow": True, "type": "c", "major": 195, "minor": 1}], Given((1,))),
        ([{"allow": True, "type": "c", "minor": 1, "access": "w"}], Given((1,))),
        ([NONE, {"allow": True, "type": "c", "major": 195, "access": "r"}], Given(every=True)),
        ([NONE, {"allow": True, "type": "c", "major": 195, "minor": -1, "access": "rw"}], Given(every=True)),
        ([NONE, {"allow": True, "type": "c", "access": "rwm"}], Given(every=True)),
        ([{"allow": True, "access": "rwm"}], Given(every=True)),
        ([{"allow": True, "type": "a", "access": "rwm"}], Given(every=True)),
        ([{"allow": True, "access": "rwm"}, {**MAKE, "allow": False}], Given(every=True)),
    ],
)
def test_a_rule_that_opens_a_gpu_gives_it(rules: list[dict[str, Any]], found: Given) -> None:
    assert of(rules=rules) == found


def test_a_file_is_known_by_its_identity(sim: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sim / "dev/nvidia1")
    os.link(sim / "dev/nvidia0", tmp_path / "other")
    for source, minor in ((sim / "dev/nvidia1", 1), (tmp_path / "link", 1), (tmp_path / "other", 0), ("other", 0)):
        for destination in ("/data", "//dev/x", "dev/x", "/xdev/nvidia5"):
            found = of(bind(source, destination), simulated=str(sim), bundle=str(tmp_path))
            assert found == Given((minor,)), (source, destination)
    assert not of(bind(sim / "dev/nvidiactl"), simulated=str(sim))
    assert not of(bind(sim / "dev/nvidia1")), "no simulated machine: a file is a file"


@pytest.mark.root
def test_a_node_is_known_by_its_number_wherever_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "vol").mkdir()
    os.mknod(tmp_path / "vol/mine", stat.S_IFCHR | 0o600, os.makedev(195, 2))
    os.mknod(tmp_path / "vol/null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert of(bind(tmp_path / "vol/mine")) == Given((2,))
    assert of({"destination": "/x", "source": "vol/mine", "options": ["rbind"]}, bundle=str(tmp_path)) == Given((2,))
    assert of(bind(tmp_path / "vol")) == Given(seen=(2,))
    assert not of(bind(tmp_path / "vol/null"))
    status = (tmp_path / "vol/mine").stat()
    hidden = of(bind("/absent", "/dev/a"), inside=lambda path: status if path == "/dev/a" else None)
    assert hidden == Given((2,)), "the source of a container in a user namespace may not be looked at"


def test_a_directory_gives_the_nodes_in_it(sim: Path, tmp_path: Path) -> None:
    os.link(sim / "dev/nvidia1", tmp_path / "again")
    more = {"simulated": str(sim)}
    assert of(bind(sim / "dev"), **more) == Given(every=True, seen=(0, 1))
    assert of(bind("/dev/", "/dev/"), **more).every
    assert of(bind(sim), **more) == Given(seen=(0, 1))
    assert of(bind(tmp_path), **more) == Given(seen=(0, 1))
    (tmp_path / "empty").mkdir()
    assert not of(bind(tmp_path / "empty"), **more)
    assert of({"destination": "/dev", "type": "devtmpfs", "source": "devtmpfs"}) == Given(every=True)
    assert not of({"destination": "/dev", "type": "tmpfs", "source": str(sim / "dev")}, **more)


def test_the_tree_counts_too(sim: Path) -> None:
    assert of(seen=(4,)) == Given(seen=(4,))
    for destination in ("/dev/nvidia3", "//dev/nvidia3", "dev/./nvidia3"):
        assert of(bind("/absent", destination), simulated=str(sim)) == Given(seen=(3,))
    assert not of(bind("/absent", "/dev/nvidia3")), "a node that is none gives nothing"


def test_a_gpu_that_is_not_known_is_refused_and_a_stale_node_is_not() -> None:
    gpus = (gpu(0), gpu(1), gpu(4))
    assert Given((1,), seen=(4, 7)).select(gpus) == gpus[1:]
    assert Given((1,), every=True).select(gpus) == gpus
    with pytest.raises(
        DeviceError, match=r"config\.json gives the container GPU 195:7, and no GPU here has that number"
    ):
        Given((0, 7)).select(gpus)
