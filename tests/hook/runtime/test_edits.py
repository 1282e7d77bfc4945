"""CDI edits on an OCI configuration (nvidia-container-toolkit.md 5.11)."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from hook.config import HookConfig
from hook.runtime import cdi, edits
from nvc.base.errors import InputError
from nvc.cdi.files import SpecFile
from nvc.cdi.spec import CdiDevice, CdiDeviceNode, CdiEdits, CdiHook, CdiIntelRdt, CdiMount, CdiNetDevice, CdiSpec

NULL = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}


def apply(config: dict[str, Any], *collected: CdiEdits) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    edits.apply(config, collected, "/b", said.append)
    return config, said


def node(**values: Any) -> CdiEdits:
    return CdiEdits(device_nodes=(CdiDeviceNode(**{"path": "/dev/null", **values}),))


def test_variables_replace_and_stay_in_order() -> None:
    config, _ = apply({"process": {"env": ["A=1", "B=2", "A=3", "AB=4"]}}, CdiEdits(env=("A=9", "C=1")))

    assert config["process"]["env"] == ["B=2", "AB=4", "A=9", "C=1"]


def test_a_device_is_completed_from_the_host() -> None:
    config, said = apply({}, node())

    assert config["linux"]["devices"] == [NULL]
    assert config["linux"]["resources"]["devices"] == [
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}
    ]
    assert said == []


@pytest.mark.parametrize(
    ("values", "expected", "access"),
    [
        ({"permissions": "rw"}, NULL, "rw"),
        ({"permissions": "none"}, NULL, ""),
        ({"file_mode": 0o600}, {**NULL, "fileMode": 0o600}, "rwm"),
        ({"path": "/dev/x", "host_path": "/dev/null"}, {**NULL, "path": "/dev/x"}, "rwm"),
        ({"type": "c", "major": 1, "minor": 3, "uid": 7, "gid": 8}, {**NULL, "uid": 7, "gid": 8}, "rwm"),
        (
            {"path": "/dev/none", "type": "c", "major": 9, "minor": 8},
            {"path": "/dev/none", "type": "c", "major": 9, "minor": 8},
            "rwm",
        ),
    ],
)
def test_devices(values: dict[str, Any], expected: dict[str, Any], access: str) -> None:
    config, _ = apply({}, node(**values))

    assert config["linux"]["devices"] == [expected]
    assert config["linux"]["resources"]["devices"][0]["access"] == access


def test_a_number_from_before_the_reboot_is_corrected_and_named() -> None:
    config, said = apply({}, node(type="c", major=510, minor=0))

    assert config["linux"]["devices"] == [NULL]
    assert said == ["CDI device node /dev/null is 1:3, not 510:0 as specified"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"path": "/dev/none"}, "No such file|no such file"),
        ({"path": "/dev/none", "type": "c"}, "o such file"),
        ({"type": "b"}, "is not a device of type b"),
        ({"path": "/etc/passwd"}, "is not a device of type c, b or p"),
    ],
)
def test_devices_that_cannot_be(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        apply({}, node(**values))


def test_owner_is_the_process_s_when_nothing_is_said_and_it_is_not_root() -> None:
    config, _ = apply({"process": {"user": {"uid": 1000, "gid": 0}}}, node())

    assert config["linux"]["devices"] == [{**NULL, "uid": 1000}]


def test_mounts_replace_by_destination_and_are_sorted_by_depth() -> None:
    old = [{"destination": "/proc/a/b"}, {"destination": "/x", "source": "old"}, {"destination": "/"}]
    mounts = (CdiMount("/h", "/x", ("ro", "bind")), CdiMount("/t", "/a/b", ("ro",), "tmpfs"), CdiMount("/g", "/z"))

    config, _ = apply({"mounts": old}, CdiEdits(mounts=mounts))

    assert config["mounts"] == [
        {"destination": "/"},
        {"destination": "/x", "source": "/h", "options": ["ro", "bind"], "type": "bind"},
        {"destination": "/z", "source": "/g", "options": ["bind"], "type": "bind"},
        {"destination": "/a/b", "source": "/t", "options": ["ro"], "type": "tmpfs"},
        {"destination": "/proc/a/b"},
    ]


def test_hooks_always_have_an_environment() -> None:
    hooks = (CdiHook("createContainer", "/h", ("h", "x")), CdiHook("prestart", "/i", env=("A=1",), timeout=3))

    config, _ = apply({"hooks": {"prestart": [{"path": "/first"}]}}, CdiEdits(hooks=hooks))

    (entry,) = config["hooks"]["createContainer"]
    assert (entry["path"], entry["args"]) == ("/h", ["h", "x"])
    assert entry["env"] == ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    assert config["hooks"]["prestart"][1:] == [{"path": "/i", "args": [], "env": ["A=1"], "timeout": 3}]


def test_the_rest() -> None:
    config, _ = apply(
        {"process": {"user": {"additionalGids": [5]}}},
        CdiEdits(
            additional_gids=(0, 5, 7, 7),
            intel_rdt=CdiIntelRdt("c", enable_cmt=True, schemata=("L3:0=f",)),
            net_devices=(CdiNetDevice("eth1", "eth0"),),
        ),
    )

    assert config["process"]["user"]["additionalGids"] == [5, 7]
    assert config["linux"]["intelRdt"] == {"closID": "c", "enableCMT": True, "schemata": ["L3:0=f"]}
    assert config["linux"]["netDevices"] == {"eth1": {"name": "eth0"}}


def test_twice_is_once() -> None:
    everything = CdiEdits(
        env=("A=1",),
        device_nodes=(CdiDeviceNode("/dev/null"),),
        mounts=(CdiMount("/h", "/x"),),
        hooks=(CdiHook("prestart", "/h"),),
        additional_gids=(7,),
    )
    once, _ = apply({}, everything)

    twice, _ = apply(copy.deepcopy(once), everything)

    assert twice == once


@pytest.mark.parametrize(
    "config", [{"process": []}, {"process": {"env": {}}}, {"mounts": {}}, {"linux": 1}, {"hooks": []}], ids=str
)
def test_a_config_of_other_types(config: dict[str, Any]) -> None:
    everything = CdiEdits(env=("A=1",), mounts=(CdiMount("/h", "/x"),), hooks=(CdiHook("prestart", "/h"),))
    with pytest.raises(InputError, match=r"/b/config\.json: .* is not an? (object|list)"):
        apply(config, everything)


def spec(path: str, rank: int, *devices: str, kind: str = "nvidia.com/gpu") -> SpecFile:
    made = tuple(CdiDevice(name, CdiEdits(env=(f"{path}={name}",))) for name in devices)
    return SpecFile(path, rank, CdiSpec("0.5.0", kind, made, CdiEdits(env=(f"{path}=common",))))


FILES = (spec("a", 0, "0", "1"), spec("b", 1, "1"), spec("c", 1, "2"), spec("d", 1, "2"), spec("e", 0, "0", kind="v/c"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["nvidia.com/gpu=0"], ["a=common", "a=0"]),
        (["nvidia.com/gpu=1"], ["b=common", "b=1"]),
        (["nvidia.com/gpu=0", "v/c=0", "nvidia.com/gpu=0"], ["a=common", "a=0", "e=common", "e=0", "a=0"]),
    ],
)
def test_resolution(names: list[str], expected: list[str]) -> None:
    assert expected == [text for one in cdi.resolve(names, FILES, HookConfig()) for text in one.env]


@pytest.mark.parametrize(
    ("name", "files", "words", "hint"),
    [
        ("nvidia.com/gpu=2", FILES, "it is in c and in d", ""),
        ("nvidia.com/gpu=9", FILES, "unresolvable CDI device nvidia.com/gpu=9", "there are: nvidia.com/gpu=0"),
        ("nvidia.com/gpu=9", (), "unresolvable", "no specification in /etc/cdi, /var/run/cdi"),
    ],
)
def test_names_that_mean_nothing(name: str, files: tuple[SpecFile, ...], words: str, hint: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        list(cdi.resolve([name], files, HookConfig()))
    assert hint in caught.value.hint


def test_an_invalid_file_is_named(tmp_path: Path) -> None:
    from nvc.cdi import files

    (tmp_path / "bad.json").write_text("{")
    os.mkdir(tmp_path / "sub.json")

    with pytest.raises(InputError) as caught:
        list(cdi.resolve(["nvidia.com/gpu=0"], files.find([str(tmp_path)]), HookConfig()))
    assert "bad.json" in caught.value.hint


def test_none_is_what_devices_have_in_common() -> None:
    assert [one.env for one in cdi.common(FILES[:1], "nvidia.com/gpu")] == [("a=common",)]
    assert list(cdi.common(FILES, "other/kind")) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("0", "0"), ("gpu3", "3"), ("mig1:0", "1:0"), ("all", "all"), ("GPU-1", "GPU-1"), ("gpux", "gpux")],
)
def test_selectors(name: str, expected: str) -> None:
    assert expected == cdi.selector(f"nvidia.com/gpu={name}")
