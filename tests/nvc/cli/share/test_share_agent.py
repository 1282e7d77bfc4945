"""``nvc-py share set``, ``pause`` and ``resume`` of a guarded container: said to the agent, or to the limits file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.status import AgentStatus, StatusTenant
from nvc.base.errors import AgentError, InputError
from nvc.share import limits, policyfile, store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from tests.support.fake_agent import FakeAgent

UUID = "GPU-00000000-0000-0000-0000-000000000001"

Share = Callable[..., tuple[int, str, str]]


@pytest.fixture
def entry(tmp_path: Path) -> str:
    """A container's entry; its first process is this one."""
    record = StoredShare("abcdef", "abcdef", os.getpid(), store.start_time(os.getpid()))
    one = Limits((ResolvedGpu(UUID, -1, 10 << 30, 500, 20),), driver="580.1", container="abcdef")
    return store.create(record, one, b"", directory=str(tmp_path / "store"))


@pytest.fixture
def share(command: Callable[..., Any], entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Share:
    monkeypatch.setattr(policyfile, "CONFIG", str(tmp_path / "none.toml"))

    def run(verb: str, *words: str) -> tuple[int, str, str]:
        place = ("--store", str(tmp_path / "store"))
        ran: tuple[int, str, str] = command(
            "share", *place, verb, "abc", *words, "--agent", str(tmp_path / "control"), program="nvc-py"
        )
        return ran

    return run


def stored(entry: str) -> Limits:
    return limits.decode(Path(entry, "limits").read_bytes())


def status(container: str = "abcdef", pid: int = 0, kind: str = "guard") -> Callable[[Any], Iterable[dict[str, Any]]]:
    tenant = StatusTenant(1, container, pid or os.getpid(), kind, 0.0, (), (), {}, 0, 0, False)
    data = AgentStatus("1", "weighted", (), (tenant,)).as_data()
    return lambda request: [{"ok": True, **data}]


def done(**fields: Any) -> Callable[[Any], Iterable[dict[str, Any]]]:
    return lambda request: [{"ok": True, **fields}]


def fails(error: Exception) -> Callable[[Any], Iterable[dict[str, Any]]]:
    def answer(request: Any) -> Iterable[dict[str, Any]]:
        raise error

    return answer


def test_a_guarded_container_is_changed_by_the_agent(share: Share, entry: str, tmp_path: Path) -> None:
    before = stored(entry)
    answers = {"status": status(), "set": done(container="abcdef", gpus=[[UUID, "mem=6Gi"]]), "pause": done()}
    with FakeAgent(str(tmp_path / "control"), **answers, resume=done()) as agent:
        code, out, err = share("set", "mem=6Gi", "--gpu", "#0", "--force")
        assert (code, out, err) == (0, f"abcdef {UUID} mem=6Gi\nin force: the agent holds it\n", "")
        assert share("pause") == (0, "abcdef is paused: the agent holds it\n", "")
        assert share("resume") == (0, "abcdef is resumed: the agent holds it\n", "")
        said = [request for request in agent.asked if request["verb"] != "status"]
    assert said == [
        {"verb": "set", "container": "abcdef", "spec": "mem=6Gi", "gpu": "#0", "force": True},
        {"verb": "pause", "container": "abcdef"},
        {"verb": "resume", "container": "abcdef"},
    ]
    assert stored(entry) == before, "the agent writes it, and this one does not"


def test_what_the_agent_refuses_is_refused(share: Share, entry: str, tmp_path: Path) -> None:
    before = stored(entry)
    refused = fails(InputError("share: mem=6Gi is too much", hint="ask for less"))
    with FakeAgent(str(tmp_path / "control"), status=status(), set=refused):
        code, _, err = share("set", "mem=6Gi")
    assert (code, "mem=6Gi is too much" in err, stored(entry)) == (1, True, before)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(status("another"), id="not its container"),
        pytest.param(status(pid=1), id="an earlier container of this name"),
        pytest.param(status(kind="attach"), id="only attached"),
        pytest.param(done(), id="an agent of another version"),
        pytest.param(fails(AgentError("busy")), id="an agent in trouble"),
    ],
)
def test_a_share_that_the_agent_does_not_guard_is_changed_in_the_file(
    share: Share, entry: str, tmp_path: Path, answer: Any
) -> None:
    with FakeAgent(str(tmp_path / "control"), status=answer) as agent:
        assert share("set", "mem=6Gi")[0] == 0
        assert {request["verb"] for request in agent.asked} == {"status"}
    assert stored(entry).gpus[0].memory == 6 << 30


def test_without_an_agent_or_with_one_that_fails_the_file_is_changed(share: Share, entry: str, tmp_path: Path) -> None:
    assert share("set", "mem=6Gi")[0] == 0
    assert stored(entry).gpus[0].memory == 6 << 30
    broken = fails(AgentError("set failed"))
    with FakeAgent(str(tmp_path / "control"), status=status(), set=broken, pause=broken):
        code, out, err = share("set", "mem=7Gi")
        assert (code, "mem=7Gi" in out, "in force" in out) == (0, True, False)
        assert "warning: agent error: set failed; it looks at the share by itself" in err
        assert share("pause")[:2] == (0, "abcdef is paused\n")
    assert (stored(entry).gpus[0].memory, stored(entry).paused) == (7 << 30, True)
