"""What runtimes send with a listener, and what another sender might."""

from __future__ import annotations

import json

import pytest

from nvc.agent.container_state import LIMIT, parse
from nvc.base.errors import AgentError

STATE = {"ociVersion": "1.0.2", "id": "c1", "status": "creating", "pid": 7, "bundle": "/b"}
MESSAGE = {"ociVersion": "0.2.0", "fds": ["seccompFd"], "pid": 7, "metadata": "nvc", "state": STATE}


def test_a_message_is_read_as_a_whole_or_refused() -> None:
    data = json.dumps(MESSAGE, indent=4).encode() + b"\n"

    found = parse(data, 1)

    assert (found.container, found.pid, found.first, found.status, found.bundle) == ("c1", 7, 7, "creating", "/b")
    for end in range(len(data) - 2):
        with pytest.raises(AgentError, match="is not JSON"):
            parse(data[:end], 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": None}, "state is missing"),
        ({"state": {**STATE, "id": ""}}, "id is no text"),
        ({"state": {**STATE, "id": "x" * 5000}}, "id is no text"),
        ({"state": {**STATE, "pid": -1}}, "pid is no process"),
        ({"pid": True}, "pid is no process"),
        ({"pid": 1 << 31}, "pid is no process"),
        ({"fds": []}, "does not name seccompFd once"),
        ({"fds": ["seccompFd", "seccompFd"]}, "does not name seccompFd once"),
        ({"fds": ["seccompFd", "other"]}, "1 descriptors came"),
        ({"state": {**STATE, "bundle": 7}}, "bundle is no text"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse(json.dumps({**MESSAGE, **change}).encode(), 1)

    assert said in caught.value.message


def test_no_message_is_endless() -> None:
    with pytest.raises(AgentError, match="longer than"):
        parse(b"x" * (LIMIT + 1), 1)
