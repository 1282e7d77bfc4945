"""``nvc-py share policy``: asks the agent and tells it, by name or by cGPU's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.cli.share.policy import MEANINGS
from nvc.guard.scheduling import POLICIES
from tests.support.agent_status import UUIDS, status
from tests.support.fake_agent import FakeAgent


class Policies:
    """An agent's policies."""

    def __init__(self) -> None:
        self.of = dict.fromkeys(UUIDS, "weighted")

    def set(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.of.update(dict.fromkeys([request["gpu"]] if "gpu" in request else UUIDS, request["policy"]))
        yield {"ok": True}

    def status(self, _: dict[str, Any]) -> Iterator[dict[str, Any]]:
        now = status()
        gpus = tuple(gpu.replace(policy=self.of[gpu.uuid]) for gpu in now.gpus)
        yield {"ok": True, **now.replace(gpus=gpus).as_data()}


@pytest.fixture
def policies(tmp_path: Path) -> Iterator[Policies]:
    kept = Policies()
    with FakeAgent(str(tmp_path / "control"), policy=kept.set, status=kept.status):
        yield kept


Policy = Callable[..., tuple[int, str, str]]


@pytest.fixture
def policy(command: Callable[..., Any], tmp_path: Path) -> Policy:
    def run(*words: str) -> tuple[int, str, str]:
        ran: tuple[int, str, str] = command("share", "policy", f"--agent={tmp_path}/control", *words, program="nvc-py")
        return ran

    return run


def test_every_policy_is_explained() -> None:
    assert len(POLICIES) == len(set(MEANINGS))


def test_it_is_printed_for_each_gpu(policy: Policy, policies: Policies) -> None:
    code, out, err = policy()
    assert (0, "") == (code, err)
    assert [f"{uuid} weighted: {MEANINGS[2]}" for uuid in UUIDS] == out.splitlines()


@pytest.mark.parametrize(
    ("word", "name"), [*((str(number), name) for number, name in enumerate(POLICIES)), ("soft", "soft")]
)
def test_it_is_set_by_number_or_name(word: str, name: str, policy: Policy, policies: Policies) -> None:
    assert 0 == policy(word)[0]
    assert {name} == set(policies.of.values())


def test_it_is_set_on_one_gpu(policy: Policy, policies: Policies) -> None:
    code, out, _ = policy("native", "--gpu", UUIDS[1])
    assert (0, 1) == (code, len(out.splitlines()))
    assert {UUIDS[0]: "weighted", UUIDS[1]: "native"} == policies.of


def test_check_says_whether_it_would_change_and_changes_nothing(policy: Policy, policies: Policies) -> None:
    policies.of[UUIDS[1]] = "native"
    assert policy("weighted", "--check")[0] == 2, "of the second GPU"
    assert policy("weighted", "--check", "--gpu", UUIDS[0])[0] == 0
    assert policy("native", "--check", "--gpu", UUIDS[0])[0] == 2
    assert policy("5", "--check", "--gpu", UUIDS[1])[0] == 0
    assert policy("--check")[0] == 0, "nothing is asked for"
    assert policies.of == {UUIDS[0]: "weighted", UUIDS[1]: "native"}


def test_an_unknown_policy_is_refused_before_the_agent_is_asked(policy: Policy) -> None:
    code, out, err = policy("6")
    assert (1, "") == (code, out)
    assert "5 native" in err


def test_without_an_agent_there_is_advice(policy: Policy) -> None:
    code, _, err = policy("fair")
    assert 1 == code
    assert "systemctl start nvc-agent" in err
