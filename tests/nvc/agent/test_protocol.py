"""The control protocol: lines, verbs, and a client in front of an agent that misbehaves."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.agent.status import AgentStatus
from nvc.base.errors import AgentError, InputError, NvcError
from nvc.share import protocol
from nvc.share.protocol import Client, NoAgent, check, decode, encode, failure, result

Serve = Callable[[Callable[[socket.socket], None]], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Listen with a function that gets the one connection."""
    threads = []

    def start(function: Callable[[socket.socket], None]) -> str:
        path = str(tmp_path / "control")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(10)

        def run() -> None:
            with listener:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    function(connection)

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)
        return path

    yield start
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_message_is_one_line_whatever_is_in_it() -> None:
    message = {"verb": "set", "container": "a\nb\u2028\udcff", "spec": "mem=1Gi"}

    line = encode(message)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"[]\n", b'"status"\n', b"{\n", b'{"verb": NaN}\n', b"\xff\n", b"[" * 9999]
)
def test_what_is_no_object_is_refused_with_a_reason(line: bytes) -> None:
    with pytest.raises(AgentError, match="a line is no message: "):
        decode(line)


def test_no_message_is_longer_than_the_limit() -> None:
    with pytest.raises(AgentError, match="longer than"):
        encode({"verb": "set", "spec": "x" * protocol.LIMIT})


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "no verb 'None'"),
        ({"verb": "stop"}, "no verb 'stop'"),
        ({"verb": ["status"]}, "no verb"),
        ({"verb": "pause"}, "pause needs the field container"),
        ({"verb": "pause", "container": 7}, "container is to be a str, not a int"),
        ({"verb": "set", "container": "a", "spec": "b", "force": 1}, "force is to be a bool"),
        ({"verb": "attach", "pid": True}, "pid is to be a int, not a bool"),
        ({"verb": "status", "extra": 1}, "status has no field 'extra'"),
    ],
)
def test_a_request_with_a_wrong_field_is_told_which(request_: dict[str, object], said: str) -> None:
    with pytest.raises(AgentError) as caught:
        check(request_)

    assert said in caught.value.message


def test_only_verbs_that_read_are_for_the_group() -> None:
    assert [verb.name for verb in protocol.VERBS.values() if verb.reads] == ["status", "events"]


def test_an_error_crosses_the_socket_with_its_class_and_hint() -> None:
    error = InputError("no container 'x'", hint="there are: y")

    with pytest.raises(InputError) as caught:
        result(decode(encode(failure(error))))

    assert (caught.value.message, caught.value.hint) == (error.message, error.hint)


@pytest.mark.parametrize("reply", [{}, {"ok": 1}, {"ok": False, "stage": []}, {"ok": "true"}])
def test_a_reply_that_does_not_say_ok_is_an_error(reply: dict[str, object]) -> None:
    with pytest.raises(NvcError):
        result(reply)


def test_the_client_asks_several_times_on_one_connection(serve: Serve) -> None:
    asked = []

    def function(connection: socket.socket) -> None:
        with connection.makefile("rwb") as file:
            for line in file:
                asked.append(decode(line))
                # In pieces, and with the beginning of nothing else.
                for byte in encode({"ok": True, "number": len(asked)}):
                    connection.sendall(bytes((byte,)))

    with Client(serve(function)) as client:
        assert client.call("status") == {"number": 1}
        assert client.call("set", container="a", spec="mem=1Gi", gpu=None) == {"number": 2}
    assert asked == [{"verb": "status"}, {"verb": "set", "container": "a", "spec": "mem=1Gi"}]


def test_a_client_says_that_no_agent_listens(tmp_path: Path) -> None:
    with pytest.raises(NoAgent) as caught:
        Client(str(tmp_path / "none"))

    assert "nvc-agent" in caught.value.hint


def test_a_client_says_that_the_agent_went_away(serve: Serve) -> None:
    path = serve(lambda connection: connection.sendall(b'{"ok": tr') and None)

    with Client(path) as client, pytest.raises(AgentError, match=r"closed by the agent|reset|broken pipe"):
        client.call("status")


def test_a_client_does_not_wait_for_ever_and_takes_no_late_answer(serve: Serve) -> None:
    done = threading.Event()
    path = serve(lambda connection: done.wait(10) and None)

    with Client(path, timeout=0.05) as client:
        with pytest.raises(AgentError, match=r"the agent does not answer \(no answer came within 0.05 s\)"):
            client.call("status")
        with pytest.raises(AgentError):
            client.call("status")
    done.set()


def test_a_client_reads_no_endless_line(serve: Serve) -> None:
    def function(connection: socket.socket) -> None:
        try:
            while True:
                connection.sendall(b"x" * 65536)
        except OSError:
            pass

    with Client(serve(function)) as client, pytest.raises(AgentError, match="a line longer than"):
        client.call("status")


def test_events_come_one_by_one_until_the_agent_ends(serve: Serve) -> None:
    def function(connection: socket.socket) -> None:
        assert decode(connection.recv(100)) == {"verb": "events"}
        connection.sendall(b'{"ok":true}\n{"event":"a"}\n{"eve')
        connection.sendall(b'nt":"b"}\n')

    with Client(serve(function)) as client:
        assert list(client.events()) == [{"event": "a"}, {"event": "b"}]


def test_a_status_survives_the_socket() -> None:
    data = {
        "version": "1",
        "policy": "weighted",
        "gpus": [
            {
                "uuid": "GPU-1",
                "minor": 0,
                "memory": 1 << 37,
                "policy": "weighted",
                "unaccounted": 1 << 30,
                "is_unbalanced": True,
                "unaccounted_by": "4f0c",
                "xids": {"31": 2},
                "energy": 12.5,
            }
        ],
        "tenants": [
            {
                "id": 1,
                "container": "4f0c",
                "pid": 7,
                "kind": "guard",
                "since": 1.5,
                "gpus": [],
                "processes": [{"pid": 7, "memory": [1, 2]}],
                "denials": {"over-quota": 3},
                "notifications": 9,
                "handling_ns": 10,
                "paused": False,
                "build": "1.2.3",
                "containers": [{"name": "4f0c", "pid": 7, "engine_name": "default/trainer-0/main"}],
                "name": "default/trainer-0/main",
                "suspended": [1 << 30],
            }
        ],
        "log_lost": 2,
        "is_cut": True,
    }

    status = AgentStatus.from_data(decode(encode(data)))

    assert status.tenants[0].denials == {"over-quota": 3}
    assert decode(encode(status.as_data())) == data


def test_an_agent_that_was_killed_is_waited_for_and_one_that_was_stopped_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "control")
    with pytest.raises(NoAgent):
        Client(path, wait=0.2)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
        killed.listen()
    begin = time.monotonic()
    with pytest.raises(AgentError, match=r"has ended, and no other one began within 0\.2 s") as caught:
        Client(path, wait=0.2)
    assert not isinstance(caught.value, NoAgent)
    assert time.monotonic() - begin >= 0.2
    with pytest.raises(NoAgent):
        Client(path)

    def start_again() -> None:
        time.sleep(0.1)
        with socket.socket(socket.AF_UNIX) as next_one:
            next_one.bind(f"{path}.new")
            next_one.listen()
            os.rename(f"{path}.new", path)
            next_one.accept()[0].close()

    thread = threading.Thread(target=start_again)
    thread.start()
    Client(path, wait=10.0).close()
    thread.join(10)


def test_what_is_encoded_already_is_put_where_it_belongs() -> None:
    line = protocol.encode({"ok": True, "tenants": protocol.Encoded(b'[{"id":1}]'), "name": 'a"b'})
    assert line == b'{"ok":true,"tenants":[{"id":1}],"name":"a\\"b"}\n'
    assert protocol.decode(line) == {"ok": True, "tenants": [{"id": 1}], "name": 'a"b'}
