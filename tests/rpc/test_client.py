"""Calls, and every way in which a helper can fail one: it dies, hangs, lies, or answers garbage."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from nvc.base.record import Record
from rpc import channel
from rpc.channel import Channel
from rpc.errors import NOT_PROCESSED, TIMED_OUT, RemoteError
from rpc.process import start
from tests.support.demo_service import (
    SERVICE,
    UNWINDING,
    Answer,
    Question,
    answering,
    handlers,
    helper,
    is_reaped,
    open_descriptors,
)


def reply(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "reply": {"text": "fine"}, **more}).encode()


def die_by(number: int) -> Callable[[Channel], None]:
    def behave(end: Channel) -> None:
        end.receive()
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)

    return behave


def exit_with(status: int) -> Callable[[Channel], None]:
    def behave(end: Channel) -> None:
        end.receive()
        os._exit(status)

    return behave


def hang(end: Channel) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end.receive()
    time.sleep(600)


def leave_but_stay(end: Channel) -> None:
    end.receive()
    end.close()
    time.sleep(600)


def raw_packet(packet: bytes) -> Callable[[Channel], None]:
    def behave(end: Channel) -> None:
        end.receive()
        with socket.socket(fileno=os.dup(end.fileno())) as sock:
            sock.send(packet)
        end.receive()

    return behave


def failure(behave: Callable[[Channel], None]) -> RemoteError:
    """What a call gets; the helper is reaped and nothing of it is left."""
    before = open_descriptors()
    client = helper(behave)
    with pytest.raises(RemoteError) as caught:
        # Only a helper that hangs has a short deadline: on a busy machine others are slow.
        client.call("double", Question(), deadline=0.2 if behave is hang else 60)
    error = caught.value
    assert is_reaped(client.pid)
    assert before == open_descriptors()
    assert ("demo", "double", None) == (error.service, error.verb, error.data)
    assert f"demo rpc error: {error.cause}: double: {error.detail}" == str(error)
    return error


@pytest.mark.parametrize(
    ("behave", "cause", "detail"),
    [
        pytest.param(
            die_by(signal.SIGSEGV), NOT_PROCESSED, "the helper died (signal 11, segmentation fault)", id="crash"
        ),
        pytest.param(die_by(signal.SIGKILL), NOT_PROCESSED, "the helper died (signal 9, killed)", id="killed"),
        pytest.param(die_by(40), NOT_PROCESSED, "the helper died (signal 40, real-time signal 6)", id="odd signal"),
        pytest.param(exit_with(3), NOT_PROCESSED, "the helper ended (exit status 3)", id="exit"),
        pytest.param(exit_with(0), NOT_PROCESSED, "the helper ended (exit status 0)", id="exit without error"),
        pytest.param(hang, TIMED_OUT, "no answer in 0.2 s", id="hang"),
        pytest.param(raw_packet(b""), NOT_PROCESSED, "the helper ended (exit status 0)", id="empty packet"),
    ],
)
def test_a_helper_that_ends_or_hangs_is_named(behave: Callable[[Channel], None], cause: str, detail: str) -> None:
    error = failure(behave)
    assert (cause, detail) == (error.cause, error.detail)


@pytest.mark.parametrize(
    ("behave", "detail"),
    [
        pytest.param(raw_packet(b"Xyz"), "not a message: b'Xyz'", id="garbage"),
        pytest.param(raw_packet(b"J" * 70_000), "a packet that was cut", id="cut"),
        pytest.param(answering(b"{"), "expecting property name", id="not JSON"),
        pytest.param(answering(b"[1]"), "not an object", id="a list"),
        pytest.param(answering(reply(2)), "an answer to call 2, not to 1", id="wrong id"),
        pytest.param(answering(b'{"id":true,"reply":{"text":""}}'), "call True", id="id of a type"),
        pytest.param(answering(b'{"reply":{}}'), "an answer to call None", id="id missing"),
        pytest.param(answering(b'{"id":1}'), "neither reply nor error", id="no content"),
        pytest.param(answering(reply(1, error=None)), "neither reply nor error", id="both"),
        pytest.param(answering(reply(1, x=1)), "neither reply nor error", id="unknown envelope field"),
        pytest.param(answering(b'{"id":1,"error":"x"}'), "neither reply nor error", id="error as text"),
        pytest.param(
            answering(b'{"id":1,"error":{"text":1,"data":null}}'), "error of another shape", id="error text a number"
        ),
        pytest.param(
            answering(b'{"id":1,"error":{"text":"x","data":[]}}'), "error of another shape", id="error data a list"
        ),
        pytest.param(answering(b'{"id":1,"reply":7}'), "Answer: expected an object, got int", id="reply of no shape"),
        pytest.param(answering(b'{"id":1,"reply":{"text":7}}'), "Answer.text: expected str, got int", id="wrong type"),
        pytest.param(answering(b'{"id":1,"reply":{"text":"","x":0}}'), "Answer: unknown field 'x'", id="unknown field"),
        pytest.param(answering(b'{"id":1,"reply":{}}'), "Answer: missing field 'text'", id="missing field"),
        pytest.param(answering(reply(1), fds=(0,)), "1 descriptors, not 0", id="extra descriptors"),
    ],
)
def test_a_reply_that_cannot_be_believed_is_named_and_the_helper_ended(
    behave: Callable[[Channel], None], detail: str
) -> None:
    error = failure(behave)
    assert NOT_PROCESSED == error.cause
    assert error.detail.startswith("unreadable reply: ")
    assert detail in error.detail


def test_a_helper_that_only_closes_its_end_is_killed() -> None:
    client = helper(leave_but_stay)
    with pytest.raises(RemoteError, match="failed to process request: double: the helper closed its end"):
        client.call("double", Question())
    assert is_reaped(client.pid)


def test_a_helper_that_is_gone_before_the_call_is_named() -> None:
    client = helper(lambda end: os._exit(9))
    os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(RemoteError, match=r"the helper ended \(exit status 9\)"):
        client.call("double", Question())
    assert is_reaped(client.pid)


def test_after_a_failure_the_cause_is_repeated_without_a_helper() -> None:
    client = helper(hang)
    with pytest.raises(RemoteError):
        client.call("double", Question(), deadline=0.05)
    assert is_reaped(client.pid)
    with pytest.raises(RemoteError, match=r"timed out: give: the helper has ended: no answer in 0\.05 s"):
        client.call("give", Question())
    client.close()


def test_a_call_that_was_begun_is_answered_later() -> None:
    with start(SERVICE, handlers()) as client:
        pending = client.begin("double", Question(text="ab"))
        with pytest.raises(RuntimeError, match="before the answer"):
            client.call("double", Question(text="x"))
        assert pending.result() == (Answer(text="abab"), [])
        assert client.call("double", Question(text="x")).text == "xx"


def test_a_failure_of_a_call_that_was_begun_comes_with_its_answer() -> None:
    with helper(die_by(signal.SIGSEGV)) as client:
        pending = client.begin("double", Question(text="ab"))
        with pytest.raises(RemoteError, match="signal 11"):
            pending.result()
        assert is_reaped(client.pid)


def test_whether_the_answer_is_there_is_known_without_waiting() -> None:
    gate, opened = os.pipe()

    def slow(request: Question, fds: list[int]) -> Answer:
        os.read(gate, 1)
        return Answer("late")

    with start(SERVICE, handlers(slow)) as client:
        pending = client.begin("run", Question())
        assert not pending.is_ready()
        os.write(opened, b"x")
        assert pending.is_ready(60)
        assert pending.result()[0] == Answer("late")
        pending = client.begin("run", Question(), deadline=0.05)
        assert pending.is_ready(60), "its deadline is over: the result is a failure, at once"
        with pytest.raises(RemoteError):
            pending.result()
    os.close(gate)
    os.close(opened)
    with helper(lambda end: None) as client:  # it ends without an answer
        pending = client.begin("double", Question())
        assert pending.is_ready(60)
        with pytest.raises(RemoteError):
            pending.result()


def test_an_answer_that_nobody_takes_ends_with_the_client() -> None:
    with start(SERVICE, handlers()) as client:
        client.begin("double", Question(text="ab"))
    assert is_reaped(client.pid)


def test_an_error_of_the_handler_leaves_the_helper_usable() -> None:
    error = json.dumps({"id": 1, "error": {"text": "KeyError: x", "data": {"stage": "mount error"}}}).encode()
    with helper(answering(error, reply(2))) as client:
        with pytest.raises(RemoteError) as caught:
            client.call("double", Question())
        assert {"stage": "mount error"} == caught.value.data
        assert "demo rpc error: failed to process request: double: KeyError: x" == str(caught.value)
        assert Answer("fine") == client.call("double", Question())


def test_descriptors_beside_an_error_are_closed() -> None:
    error = json.dumps({"id": 1, "error": {"text": "x", "data": None}}).encode()
    with helper(answering(error, fds=(0,))) as client:
        before = open_descriptors()
        with pytest.raises(RemoteError):
            client.call("give", Question())
        assert before == open_descriptors()


def test_descriptors_nobody_asked_for_are_closed() -> None:
    with helper(answering(reply(1), fds=(0, 1))) as client:
        before = open_descriptors()
        with pytest.raises(RemoteError, match="a reply with unexpected descriptors"):
            client.call("give", Question())
        assert before == open_descriptors()


def test_descriptors_come_back_with_the_reply() -> None:
    with helper(answering(reply(1), fds=(0, 1))) as client:
        answer, fds = client.call_with_fds("give", Question())
        assert "fine" == answer.text
        assert [os.fstat(0).st_ino, os.fstat(1).st_ino] == [os.fstat(fd).st_ino for fd in fds]
        channel.close_all(fds)


def test_a_verb_that_is_not_in_the_table_is_a_mistake_of_the_program() -> None:
    with helper(answering()) as client, pytest.raises(KeyError):
        client.call("steal", Question())


class Bad(Record):
    def as_data(self) -> dict[str, Any]:
        return {"x": {1}}


@pytest.mark.parametrize(
    ("request_", "detail"),
    [
        pytest.param(Bad(), "the request cannot be sent: a set cannot be sent", id="not JSON"),
        pytest.param(Question("x" * channel.LIMIT), "the request has 8388", id="too long"),
    ],
)
def test_a_request_that_cannot_be_sent_costs_no_helper(request_: Record, detail: str) -> None:
    with helper(answering(reply(2))) as client:
        with pytest.raises(RemoteError) as caught:
            client.call("double", request_)
        assert detail in caught.value.detail
        assert Answer("fine") == client.call("double", Question())


def test_too_many_descriptors_are_refused() -> None:
    with helper(answering()) as client, pytest.raises(RemoteError, match="17 descriptors in one message"):
        client.call("give", Question(), [0] * 17)


def test_a_closed_descriptor_is_an_error_of_the_channel() -> None:
    with helper(answering()) as client, pytest.raises(RemoteError, match="the channel failed: Bad file descriptor"):
        client.call("give", Question(), [999_999])


def test_a_closed_client_says_so() -> None:
    client = helper(answering())
    assert not client.closed
    client.close()
    client.close()
    assert client.closed
    with pytest.raises(RemoteError, match="demo rpc error: failed to process request: double: the service is closed"):
        client.call("double", Question())


def test_close_reaps_a_helper_that_left_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpc.client.EXIT_TIMEOUT_S", 60.0)
    client = helper(answering())
    client.close()
    assert is_reaped(client.pid)
    assert client._process.ending() == "the helper ended (exit status 0)", "it was not killed"


def test_close_kills_a_helper_that_does_not_leave() -> None:
    client = helper(lambda end: time.sleep(600))
    client.close()
    assert is_reaped(client.pid)
    assert client._process.ending() == "the helper died (signal 9, killed)"


def test_an_exception_in_the_with_block_ends_the_helper_too() -> None:
    with pytest.raises(KeyboardInterrupt), helper(answering()) as client:
        raise KeyboardInterrupt
    assert is_reaped(client.pid)


def test_a_service_that_unwinds_gets_sigterm_and_time(tmp_path: Any) -> None:
    done = tmp_path / "undone"
    ready, told = os.pipe()

    def behave(end: Channel) -> None:
        def undo(*_: object) -> None:
            time.sleep(0.3)
            done.write_text("yes")
            os._exit(0)

        signal.signal(signal.SIGTERM, undo)
        os.write(told, b"x")
        end.receive()
        time.sleep(600)

    client = helper(behave, UNWINDING)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    os.close(told)
    with pytest.raises(RemoteError, match="careful rpc error: timed out"):
        client.call("double", Question(), deadline=0.1)
    assert "yes" == done.read_text()
    assert is_reaped(client.pid)


def test_a_service_that_unwinds_for_ever_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpc.client.UNWIND_TIMEOUT_S", 0.2)
    client = helper(hang, UNWINDING)
    with pytest.raises(RemoteError):
        client.call("double", Question(), deadline=0.1)
    assert is_reaped(client.pid)


def test_the_tables_of_the_demonstration_agree() -> None:
    assert set(SERVICE.methods) == set(handlers())
