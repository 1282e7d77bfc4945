"""The order of containers in ``nvc-py top``, by option and by key, and the help that a key shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.view import collect
from nvc.cli.top import order
from tests.nvc.cli.top.test_terminal import Terminal
from tests.nvc.cli.top.test_terminal import terminal as terminal
from tests.support.agent_status import GIB, UUIDS, saying, share, status, tenant
from tests.support.fake_agent import FakeAgent

#: Of three containers: memory, achieved ratio, frozen, denials.
THREE = status(
    tenant(1, container="b" * 12, gpus=(share(UUIDS[0], memory=2 * GIB, achieved_ratio=0.1, frozen_ns=3),)),
    tenant(2, container="c" * 12, gpus=(share(UUIDS[0], memory=GIB, achieved_ratio=0.7, frozen_ns=1),)),
    tenant(3, container="a" * 12, gpus=(share(UUIDS[0], memory=3 * GIB, achieved_ratio=0.2, frozen_ns=2),)),
)
FIRST = {"came": "bca", "memory": "abc", "time": "cab", "frozen": "bac", "denied": "bca", "name": "abc"}


@pytest.mark.parametrize("word", order.WORDS)
def test_containers_come_in_the_order_that_is_asked_for(word: str, command: Callable[..., Any], tmp_path: Path) -> None:
    words = ("top", "--agent", str(tmp_path / "control"), "--store", str(tmp_path / "none"), f"--sort={word}")
    with FakeAgent(str(tmp_path / "control"), status=saying(THREE)):
        code, out, _ = command(*words, "--once", "--json", program="nvc-py")
        assert code == 0
        (gpu,) = [gpu for gpu in json.loads(out)["gpus"] if gpu["uuid"] == UUIDS[0]]
        _, text, _ = command(*words, "--once", "--no-processes", program="nvc-py")
    assert [one["container"][0] for one in gpu["shares"]] == [*FIRST[word]]
    assert [line[0] for line in text.splitlines() if line[:1] in {*"abc"} and line[:3] == line[0] * 3] == [*FIRST[word]]


def test_every_key_has_a_word_and_a_line_of_help() -> None:
    text = "\n".join(line.plain for line in order.help_lines("memory"))
    keys = [*(one.key for one in order.ORDERS), *(key for keys, _ in order.KEYS for key in keys.split(", "))]
    assert len(set(keys)) == len(keys)
    for one in order.ORDERS:
        assert order.by_key(one.key) == order.by_key(one.key.upper()) == one.word
        assert one.meaning in text
    assert order.by_key("x") == ""
    assert order.ordered(collect(None, (), 0.0), "memory") == collect(None, (), 0.0)


def test_keys_in_a_terminal(tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    socket = str(tmp_path / "control")
    with FakeAgent(socket, status=saying(THREE)):
        shown = terminal("top", "--agent", socket, "--store", str(tmp_path / "none"), "--interval=600")
        shown.until("h help")
        shown.until("b" * 12)
        shown.press("m")
        shown.until("a" * 12)
        shown.press("h")
        shown.until("nvc-py top: keys")
        shown.until("memory used, the most first")
        shown.press("x")
        shown.until("agent 1.2")
        shown.press("q")
        code, rest = shown.end()
    assert code == 0 and "Traceback" not in rest
