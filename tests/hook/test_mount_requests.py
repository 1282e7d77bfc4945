"""Requests by volume mounts (nvidia-container-toolkit.md 1.6.2)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hook import bundle, mount_requests
from nvc.base.errors import InputError

PLACE = "/var/run/nvidia-container-devices"


def requested(*mounts: Any) -> tuple[str, ...]:
    config = {"ociVersion": "1.0.2", "process": {}, "root": {"path": "r"}, "mounts": list(mounts)}
    return bundle.decode(json.dumps(config).encode(), "/b").device_mounts


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        pytest.param("/dev/null", f"{PLACE}/0", ("0",), id="device"),
        pytest.param("/dev/null", f"{PLACE}/GPU-1/", ("GPU-1",), id="slash behind"),
        pytest.param("/dev/../dev//null", "/var//run/./nvidia-container-devices/all", ("all",), id="not clean"),
        pytest.param("/dev/null", f"{PLACE}/cdi/nvidia.com/gpu/0", ("cdi/nvidia.com/gpu/0",), id="CDI"),
        pytest.param("/dev/zero", f"{PLACE}/0", (), id="another source"),
        pytest.param("/dev/null", PLACE, (), id="the directory itself"),
        pytest.param("/dev/null", f"{PLACE}/..", (), id="out of it"),
        pytest.param("/dev/null", f"{PLACE}X", (), id="Q11: another directory"),
        pytest.param("/dev/null", f"/host{PLACE}/0", (), id="elsewhere"),
        pytest.param(None, f"{PLACE}/0", (), id="no source"),
        pytest.param("/dev/null", None, (), id="no destination"),
    ],
)
def test_what_counts(source: Any, destination: Any, expected: tuple[str, ...]) -> None:
    assert expected == requested({"source": source, "destination": destination})


def test_order_is_kept_and_each_counts_once() -> None:
    assert requested(*({"source": "/dev/null", "destination": f"{PLACE}/{name}"} for name in "1021")) == ("1", "0", "2")


@pytest.mark.parametrize("mounts", [{}, "x", [1], [None]])
def test_mounts_that_are_none(mounts: Any) -> None:
    data = json.dumps({"ociVersion": "1", "process": {}, "root": {}, "mounts": mounts}).encode()
    with pytest.raises(InputError, match="mounts is not a list of objects"):
        bundle.decode(data, "/b")


def test_kinds_are_told_apart() -> None:
    said: list[str] = []
    names = ("0", "imex/3", "cdi/nvidia.com/gpu/1", "cdi/v.com/c=a", "cdi/x", "imex/3", "a/b")

    assert mount_requests.devices(names, said.append) == ("0", "nvidia.com/gpu=1", "v.com/c=a", "a/b")
    assert mount_requests.imex_channels(names) == ("3",)
    assert len(said) == 1
    assert r"'cdi\x2fx'" in said[0]


@pytest.mark.parametrize("text", ["", "x", "a/b", "/b=c", "a/=c", "a/b=", "a=b", "a/b/c=d", "a/b/c/d", "a/b=c/d", "//"])
def test_no_cdi_name(text: str) -> None:
    assert mount_requests.qualified(text) == ""
