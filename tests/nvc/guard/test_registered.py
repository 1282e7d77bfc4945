"""Whether a container is guarded: what the share step believes, and how long it waits for an answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.base.errors import AgentError, ContainerError, InputError, NvcError, PrivilegeError
from nvc.guard import registered
from nvc.guard.filter import merge
from nvc.request.injection import ShareRequest
from nvc.share.policy import Policy
from tests.support.fake_agent import FakeAgent

NATIVE = "SCMP_ARCH_X86_64"
AUTO, REQUIRE, OFF = Policy(), Policy(guard="require"), Policy(guard="off")


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "bundle").mkdir()
    return str(tmp_path)


@pytest.fixture
def asked(directory: str) -> ShareRequest:
    """A container whose config.json has no listener."""
    return ShareRequest("mem=1Gi", container="c1", bundle=f"{directory}/bundle")


@pytest.fixture
def whole(directory: str) -> dict[str, Any]:
    return merge(None, f"{directory}/listen", "nvc", NATIVE)


Serve = Callable[[Callable[[dict[str, Any]], dict[str, Any]]], FakeAgent]


@pytest.fixture
def serve(directory: str) -> Iterator[Serve]:
    made: list[FakeAgent] = []

    def start(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> FakeAgent:
        made.append(FakeAgent(f"{directory}/control", bind=lambda request: [answer(request)]))
        return made[-1]

    yield start
    for agent in made:
        agent.close()


def refuse(request: dict[str, Any]) -> dict[str, Any]:
    raise ContainerError(f"container {request['container']} is not registered with the agent", hint="nvc-runtime")


def test_a_registered_container_with_the_guards_rules_is_guarded(
    directory: str, asked: ShareRequest, whole: dict[str, Any], serve: Serve
) -> None:
    agent = serve(lambda request: {"ok": True, "registered": True})
    for policy in (AUTO, REQUIRE, OFF):
        assert registered.is_guarded(asked.replace(seccomp=whole), 7, policy, directory)
    at = Path(asked.bundle).stat()
    assert agent.asked[0] == {"verb": "bind", "container": "c1", "device": at.st_dev, "inode": at.st_ino, "pid": 7}


def test_one_that_the_agent_does_not_know_is_refused_whatever_the_node_says(
    directory: str, asked: ShareRequest, whole: dict[str, Any], serve: Serve
) -> None:
    serve(refuse)
    for policy in (AUTO, REQUIRE, OFF):
        with pytest.raises(ContainerError, match="container c1 is not registered") as caught:
            registered.is_guarded(asked.replace(seccomp=whole), 7, policy, directory)
        assert "nvc-runtime" in caught.value.hint


def test_an_agent_that_is_not_there_confirms_nothing(
    directory: str, asked: ShareRequest, whole: dict[str, Any]
) -> None:
    with pytest.raises(ContainerError, match=r"does not confirm that it guards the container: .*no agent listens at"):
        registered.is_guarded(asked.replace(seccomp=whole), 7, AUTO, directory)


def test_a_bundle_that_is_not_there_is_refused(
    directory: str, asked: ShareRequest, whole: dict[str, Any], serve: Serve
) -> None:
    serve(lambda request: {"ok": True, "registered": True})
    with pytest.raises(ContainerError, match="/nowhere: no such file"):
        registered.is_guarded(asked.replace(seccomp=whole, bundle="/nowhere"), 7, AUTO, directory)


@pytest.mark.parametrize("bundle", [True, False], ids=["the share step", "configure"])
def test_an_agent_that_hangs_is_an_error_in_time(
    directory: str, asked: ShareRequest, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, bundle: bool
) -> None:
    assert registered.SECONDS == 5.0
    monkeypatch.setattr(registered, "SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{directory}/control")
        silent.listen(4)
        asked = asked.replace(seccomp=whole) if bundle else asked.replace(bundle="")
        for policy in (AUTO, REQUIRE):
            with pytest.raises(NvcError, match=r"does not answer \(no answer came within 0\.1 s\)"):
                registered.is_guarded(asked, 7, policy, directory)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"listenerPath": "/run/other", "listenerMetadata": "nvc"}, id="metadata"),
        pytest.param({"listenerPath": "/run/other", "listenerMetadata": "nvc:more"}, id="metadata and more"),
        pytest.param({"syscalls": []}, id="the agent's listener, no rules"),
        pytest.param({"syscalls": [], "listenerMetadata": "theirs"}, id="the agent's listener, other metadata"),
    ],
)
def test_a_profile_that_claims_the_guard_is_refused_before_the_agent_is_asked(
    directory: str, asked: ShareRequest, whole: dict[str, Any], serve: Serve, change: dict[str, Any]
) -> None:
    agent = serve(lambda request: {"ok": True, "registered": True})
    for policy in (AUTO, REQUIRE, OFF):
        with pytest.raises(InputError, match="seccomp profile: it claims nvc's guard, and it"):
            registered.is_guarded(asked.replace(seccomp={**whole, **change}), 7, policy, directory)
    assert agent.asked == []


@pytest.mark.parametrize(
    "profile",
    [
        {},
        {"listenerPath": "/run/other"},
        {"listenerPath": "/run/other", "listenerMetadata": "theirs"},
        {"listenerPath": "/run/other", "listenerMetadata": ["nvc"]},
        {"listenerPath": "/run/other", "listenerMetadata": "nvcx"},
    ],
)
def test_a_container_that_claims_nothing_has_the_library_or_does_not_start(
    directory: str, asked: ShareRequest, profile: dict[str, Any], serve: Serve
) -> None:
    agent = serve(lambda request: {"ok": True, "registered": True})
    assert not registered.is_guarded(asked.replace(seccomp=profile), 7, AUTO, directory)
    with pytest.raises(PrivilegeError, match="this node requires a guard for shares, and this container has none"):
        registered.is_guarded(asked.replace(seccomp=profile), 7, REQUIRE, directory)
    assert agent.asked == [], "the agent is not needed for that"


def test_the_annotation_counts_only_where_the_node_lets_it(directory: str, asked: ShareRequest) -> None:
    asked = asked.replace(guard_off=True)
    assert not registered.is_guarded(asked, 7, REQUIRE.replace(allow_guard_off=True), directory)
    with pytest.raises(PrivilegeError, match="requires a guard"):
        registered.is_guarded(asked, 7, REQUIRE, directory)


def test_configure_goes_by_the_process(directory: str, asked: ShareRequest, serve: Serve) -> None:
    asked = asked.replace(bundle="", container="")
    assert not registered.is_guarded(asked, 7, AUTO, directory), "no agent"
    agent = serve(lambda request: {"ok": True, "registered": request["pid"] == 7})
    assert registered.is_guarded(asked, 7, REQUIRE, directory)
    assert not registered.is_guarded(asked, 8, AUTO, directory)
    for pid in (8, 0):
        with pytest.raises(PrivilegeError, match="requires a guard"):
            registered.is_guarded(asked, pid, REQUIRE, directory)
    assert [request["pid"] for request in agent.asked] == [7, 8, 8]


def test_an_agent_that_answers_nonsense_is_no_yes(directory: str, asked: ShareRequest, serve: Serve) -> None:
    serve(lambda request: {"ok": True, "registered": "yes"})
    assert not registered.is_guarded(asked.replace(bundle=""), 7, AUTO, directory)


def test_what_registers_is_the_process_that_asks(directory: str, asked: ShareRequest) -> None:
    """The agent takes the runtime's pid from the socket, so it is in no request."""
    from nvc.share.protocol import Client

    with FakeAgent(f"{directory}/control", register=lambda request: [{"ok": True}]) as agent:
        with Client(f"{directory}/control") as client:
            registered.register(client, "c1", asked.bundle)
            with pytest.raises(InputError, match="/nowhere: no such file"):
                registered.register(client, "c1", "/nowhere")
        at = Path(asked.bundle).stat()
        told = {"verb": "register", "container": "c1", "bundle": asked.bundle}
        assert agent.asked == [{**told, "device": at.st_dev, "inode": at.st_ino}]
    with pytest.raises(AgentError, match="no agent"):
        Client(f"{directory}/control")
