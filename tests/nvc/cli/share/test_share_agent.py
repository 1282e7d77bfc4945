"""``nvc-py share set``, ``pause`` and ``resume`` of a guarded container: said to the agent, or to the limits file."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.status import AgentStatus, StatusContainer, StatusTenant, TenantGpu
from nvc.base.errors import AgentError, InputError
from nvc.share import limits, policyfile, protocol, store
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


def status(
    container: str = "abcdef",
    pid: int = 0,
    kind: str = "guard",
    build: str = "",
    gpus: tuple[TenantGpu, ...] = (),
) -> Callable[[Any], Iterable[dict[str, Any]]]:
    containers = (StatusContainer(container, pid or os.getpid()),) if kind == "guard" else ()
    tenant = StatusTenant(1, container, pid or os.getpid(), kind, 0.0, gpus, (), {}, 0, 0, False, build, containers)
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


def test_the_version_of_the_guard_is_shown(
    command: Callable[..., Any], entry: str, usual_agent: Callable[[str], None], tmp_path: Path
) -> None:
    usual_agent(str(tmp_path / "control"))
    words = ("share", "--store", str(tmp_path / "store"), "ls")
    code, out, _ = command(*words, program="nvc-py")
    assert (code, out.splitlines()[0].split()[-2:], out.splitlines()[1].split()[-1]) == (0, ["GUARD", "NOTES"], "-")
    with FakeAgent(str(tmp_path / "control"), status=status(build="1.2.3")):
        _, out, _ = command(*words, program="nvc-py")
        assert out.splitlines()[1].split()[-1] == "1.2.3"
        assert json.loads(command(*words, "--json", program="nvc-py")[1])["shares"][0]["guard"] == "1.2.3"
    with FakeAgent(str(tmp_path / "control"), status=status("another", build="1.2.3")):
        assert "1.2.3" not in command(*words, program="nvc-py")[1]


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


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait a moment only."""
    usual = protocol.Client.__init__

    def quick(self: protocol.Client, path: str, timeout: float = 0.2, wait: float = 0.0) -> None:
        usual(self, path, min(timeout, 0.2), wait)

    monkeypatch.setattr(protocol.Client, "__init__", quick)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("words", [("ls",), ("ls", "--json"), ("get", "abc")], ids=" ".join)
def test_an_agent_that_does_not_answer_is_an_error_beside_what_is_known(
    words: tuple[str, ...], command: Callable[..., Any], entry: str, tmp_path: Path
) -> None:
    # The rows were printed as those of a node without an agent, with exit code 0.
    place = ("share", "--store", str(tmp_path / "store"))
    with FakeAgent(str(tmp_path / "control"), status=lambda _: iter(())):
        code, out, err = command(*place, *words, "--agent", str(tmp_path / "control"), program="nvc-py")
    assert (code, "abcdef" in out) == (1, True)
    assert "the agent does not answer" in err and "systemctl restart nvc-agent" in err


@pytest.mark.usefixtures("impatient")
def test_a_change_without_the_answer_of_the_agent_is_made_with_a_warning(
    share: Share, entry: str, tmp_path: Path
) -> None:
    with FakeAgent(str(tmp_path / "control"), status=lambda _: iter(())):
        code, _, err = share("set", "mem=6Gi")
    assert (code, stored(entry).gpus[0].memory) == (0, 6 << 30)
    assert "the agent does not answer" in err and "the change is made without the agent" in err


@pytest.mark.usefixtures("impatient")
def test_a_full_queue_of_connections_is_an_agent_that_does_not_answer(share: Share, entry: str, tmp_path: Path) -> None:
    # connect(2) gives EAGAIN then, at once: nvc-runtime refused a container for it.
    with socket.socket(socket.AF_UNIX) as stopped, contextlib.ExitStack() as held:
        stopped.bind(str(tmp_path / "control"))
        stopped.listen(0)
        for _ in range(4):
            one = held.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(str(tmp_path / "control"))
        with pytest.raises(protocol.NoAnswer, match="the agent does not answer"):
            protocol.Client(str(tmp_path / "control"))


def test_only_the_container_that_is_changed_is_asked_for(share: Share, entry: str, tmp_path: Path) -> None:
    with FakeAgent(str(tmp_path / "control"), status=status(), pause=done()) as agent:
        share("pause")
    assert agent.asked[0] == {"verb": "status", "container": "abcdef"}


@pytest.mark.parametrize(("word", "said"), [("soon", "work is announced for 10 s"), ("done", "idle until it computes")])
def test_a_hint_goes_to_the_agent(share: Share, entry: str, tmp_path: Path, word: str, said: str) -> None:
    with FakeAgent(str(tmp_path / "control"), hint=done(container="abcdef")) as agent:
        assert share("hint", word) == (0, f"abcdef: {said}\n", "")
        assert agent.asked == [{"verb": "hint", "container": "abcdef", "word": word}]
    assert share("hint", "later")[0] == 1


def test_how_long_a_service_waits_is_a_column_where_there_is_one(
    command: Callable[..., Any], entry: str, tmp_path: Path
) -> None:
    words = ("share", "--store", str(tmp_path / "store"), "ls", "--agent", str(tmp_path / "control"))
    assert "WAIT" not in command(*words, program="nvc-py")[1]
    with store.find("abcdef", str(tmp_path / "store")) as found:
        found.lock()
        found.change(stored(entry).replace(gpus=(ResolvedGpu(UUID, -1, priority="service", latency=1000),)))
    _, out, _ = command(*words, program="nvc-py")
    assert dict(zip(*(line.split() for line in out.splitlines()), strict=False))["WAIT"] == "-/1ms", (
        "no agent, no bound"
    )
    gpu = TenantGpu(UUID, 0, 0, 0, 0, 0, 0, "service", 0.5, 0.1, 1, 64_000, False, 0, latency_us=1000, bound_us=7230)
    gpu = gpu.replace(service="idle")
    with FakeAgent(str(tmp_path / "control"), status=status(gpus=(gpu,))):
        _, out, _ = command(*words, program="nvc-py")
    assert "7.23/1ms" in out and "no work for a while" in out
