"""Which CDI hooks of a container nvc-runtime makes one start of."""

from __future__ import annotations

from typing import Any

import pytest

from hook.runtime.joined import join
from tests.hook.runtime.test_guard import WHOLE, GuardBench, guard, machines

__all__ = ["guard", "machines"]
PATH = ["PATH=/usr/bin"]


def entry(*words: str, path: str = "/usr/bin/nvc-cdi-hook", **more: Any) -> dict[str, Any]:
    return {"path": path, "args": [path.rpartition("/")[2], *words], "env": PATH, **more}


def joined(*entries: Any) -> list[Any]:
    content: dict[str, Any] = {"hooks": {"createContainer": list(entries)}}
    join(content, "/bundle")
    found = content["hooks"]["createContainer"]
    assert isinstance(found, list)
    return found


def test_neighbours_are_one_start_in_their_order() -> None:
    links, shares = entry("create-symlinks", "--link", "a::b", "then", "noop"), ["--share-fixed=a", "--share-fixed=b"]
    [one] = joined(links, *(entry("share", words) for words in shares))
    assert "create-symlinks --link a::b then noop then share --share-fixed=a then share --share-fixed=b" == " ".join(
        one.pop("args")[1:]
    )
    assert {"path": "/usr/bin/nvc-cdi-hook", "env": PATH} == one


@pytest.mark.parametrize(
    "other",
    [
        entry("share", env=["PATH=/sbin"]),
        entry("share", timeout=5),
        entry("share", path="/opt/nvc-cdi-hook"),
        entry("share", path="/usr/bin/nvidia-cdi-hook"),
        {**entry("share"), "args": ["nvidia-cdi-hook", "share"]},
        entry("cdi-hook", "share", path="/usr/bin/nvc-py"),
        entry("apply-cuda-memory-limits"),
        entry("--help"),
        entry(),
        entry("share", "--timeout=5"),
        entry("share", "--debug", "/tmp/log"),
        entry("share", "--container-spec=-"),
        {"path": "/usr/bin/nvc-cdi-hook"},
        "no entry",
    ],
    ids=repr,
)
def test_others_stay_as_they_are(other: Any) -> None:
    before = [entry("noop"), other, entry("noop")]
    assert before == joined(*before)


def test_a_container_without_hooks_has_none() -> None:
    for content in ({}, {"hooks": None}, {"hooks": {}}, {"hooks": {"createContainer": None}}):
        join(content, "/bundle")
        assert "createContainer" not in str(content) or content["hooks"]["createContainer"] is None


def test_nvc_runtime_does_it_for_a_container_with_a_share(guard: GuardBench) -> None:
    hooks = {"createContainer": [entry("create-symlinks", "--link", "a::b"), entry("share", "--share=mem=1Gi")]}
    linux = {"devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]}
    guard.bench.write(("NVIDIA_VISIBLE_DEVICES=void",), hooks=hooks, linux=linux)
    done = guard.bench.create(env={"NVC_SIM": str(guard.machines / WHOLE)})
    assert 0 == done.returncode, done.stderr
    assert "seccomp" in guard.bench.content["linux"]
    assert 1 == len(guard.bench.content["hooks"]["createContainer"])
