"""An agent that --agent names is expected to be there; at the usual place many hosts have none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.protocol import CONTROL
from nvc.share.store import StoredShare
from tests.support.agent_status import UUIDS

LISTS = [("share", "ls"), ("share", "ls", "--json"), ("share", "get", "held"), ("top", "--once"), ("top", "--json")]
START = "start one: systemctl start nvc-agent, or nvc-py agent"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(command: Callable[..., Any], tmp_path: Path) -> Run:
    """A command on a store that has the container "held"."""
    directory = str(tmp_path / "store")
    limits = Limits((ResolvedGpu(UUIDS[0], 0, 10 << 30, 500, 20),), driver="580.1", container="held")
    store.create(
        StoredShare("held", "held", os.getpid(), store.start_time(os.getpid())), limits, b"", directory=directory
    )

    def ran(group: str, *words: str, at: str = directory) -> tuple[int, str, str]:
        found: tuple[int, str, str] = command(group, f"--store={at}", *words, program="nvc-py")
        return found

    return ran


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_no_agent_where_one_is_named_is_an_error(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    # It said "no container here has a share", with exit code 0, which a mistyped name and a dead agent are not.
    path = f"{tmp_path}/none"
    code, out, err = run(*words, f"--agent={path}")
    assert code == 1
    assert "held" in out, "what is known without it is shown"
    assert f"nvc-py: agent error: no agent listens at {path}\n" in err
    assert f"hint: correct --agent, or leave it out for {CONTROL}; {START}\n" in err


@pytest.mark.parametrize("words", [("share", "ls"), ("share", "ls", "--json"), ("top", "--once")], ids=" ".join)
def test_no_container_is_not_said_to_be_the_reason(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    code, _, err = run(*words, f"--agent={tmp_path}/none", at=f"{tmp_path}/empty")
    assert code == 1
    assert "no agent listens" in err
    assert "no container" not in err


def test_a_directory_is_said_to_be_one(run: Run, tmp_path: Path) -> None:
    code, _, err = run("share", "ls", f"--agent={tmp_path}/")
    assert code == 1
    assert f"hint: that is a directory: --agent {tmp_path}/control\n" in err


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_no_agent_at_the_usual_place_is_none(
    words: tuple[str, ...], run: Run, usual_agent: Callable[[str], None], tmp_path: Path
) -> None:
    usual_agent(f"{tmp_path}/none")
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert "held" in out
    if "--json" in words:
        assert not json.loads(out).get("warnings") and not json.loads(out).get("problems")
