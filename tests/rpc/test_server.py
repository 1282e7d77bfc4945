"""The helper's loop, in this process: every request gets exactly one answer, whatever it is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvc.base.record import Record
from rpc import channel
from rpc.channel import Channel
from rpc.errors import ChannelError, Stop
from rpc.server import check_handlers, serve
from tests.support.demo_service import SERVICE, Answer, Question, handlers, open_descriptors


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = channel.pair()
    yield one, other
    one.close()
    other.close()


def request(verb: Any = "double", data: Any = None, number: Any = 1, seconds: Any = 9.5) -> bytes:
    wanted = {"text": "ab"} if data is None else data
    return json.dumps({"id": number, "verb": verb, "seconds": seconds, "request": wanted}).encode()


def answers(ends: tuple[Channel, Channel], *packets: bytes, fds: tuple[int, ...] = (), **options: Any) -> list[Any]:
    """Send the packets, serve until the end of file, return the answers."""
    run = options.pop("run", None)
    for packet in packets:
        ends[0].send(packet, fds)
    ends[0].finish()
    serve(SERVICE, handlers() if run is None else handlers(run), ends[1], **options)
    ends[1].finish()
    found = []
    while (received := ends[0].receive()) is not None:
        found.append(json.loads(received[0]))
        channel.close_all(received[1])
    return found


def test_requests_are_answered_in_order_until_the_end_of_file(ends: tuple[Channel, Channel]) -> None:
    expected = [{"id": n, "reply": {"text": "abab", "numbers": []}} for n in (1, 2, 3)]
    assert expected == answers(ends, request(number=1), request(number=2), request(number=3))


@pytest.mark.parametrize(
    ("packet", "number", "text"),
    [
        pytest.param(b"", 0, "CodecError: a value is missing at line 1 column 1", id="nothing"),
        pytest.param(b"\x00\x01", 0, "CodecError: a value is missing", id="not JSON"),
        pytest.param(b"[]", 0, "BadRequest: a request has id, verb, seconds and request", id="a list"),
        pytest.param(b'{"id":1,"verb":"double"}', 0, "BadRequest: a request has id", id="a field missing"),
        pytest.param(b'{"id":1,"verb":"double","seconds":1,"request":{},"x":1}', 0, "BadRequest", id="a field more"),
        pytest.param(request(number=True), 0, "BadRequest: a request's id is a number", id="id not a number"),
        pytest.param(request([]), 0, "BadRequest: a request's id", id="verb not a word"),
        pytest.param(request(seconds=True), 0, "BadRequest: a request's seconds", id="seconds not a number"),
        pytest.param(request(seconds=-1), 0, "BadRequest: a request's seconds", id="seconds before now"),
        pytest.param(request(seconds=1e300), 0, "BadRequest: a request's seconds", id="no timer's seconds"),
        pytest.param(request("steal"), 1, "BadRequest: no verb 'steal'", id="unknown verb"),
        pytest.param(request("__init__"), 1, "BadRequest: no verb '__init__'", id="attribute of the handlers"),
        pytest.param(request(data=[]), 1, "DecodeError: Question: expected an object", id="request of no shape"),
        pytest.param(request(data={"text": 1}), 1, "DecodeError: Question.text: expected str, got int", id="type"),
        pytest.param(request(data={"t": ""}), 1, "DecodeError: Question: unknown field 't'", id="unknown field"),
    ],
)
def test_a_request_that_is_none_is_answered_with_the_reason(
    ends: tuple[Channel, Channel], packet: bytes, number: int, text: str
) -> None:
    first, second = answers(ends, packet, request(number=7))
    assert number == first["id"]
    assert text in first["error"]["text"]
    assert first["error"]["data"] is None
    assert {"id": 7, "reply": {"text": "abab", "numbers": []}} == second


def test_descriptors_that_a_verb_does_not_take_are_refused_and_closed(ends: tuple[Channel, Channel]) -> None:
    before = open_descriptors()
    (answer,) = answers(ends, request(), fds=(0, 1))
    assert "BadRequest: double takes 0 descriptors, got 2" == answer["error"]["text"]
    # The fixture's second end was shut down, not closed.
    assert before == open_descriptors()


def test_descriptors_go_in_and_out_and_none_stays(ends: tuple[Channel, Channel]) -> None:
    before = open_descriptors()
    (answer,) = answers(ends, request("give"), fds=(0, 1))
    assert [os.fstat(0).st_ino, os.fstat(1).st_ino] == answer["reply"]["numbers"]
    assert before == open_descriptors()


def raising(error: BaseException) -> Callable[[Question, list[int]], Any]:
    def run(request: Question, fds: list[int]) -> Any:
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError("bad"), id="exception"),
        pytest.param(SystemExit("bad"), id="exit"),
        pytest.param(KeyboardInterrupt("bad"), id="interrupt"),
    ],
)
def test_whatever_a_handler_raises_is_an_answer(ends: tuple[Channel, Channel], error: BaseException) -> None:
    first, second = answers(ends, request("run"), request(number=2), run=raising(error))
    assert {"text": f"{type(error).__name__}: bad", "data": None} == first["error"]
    assert 2 == second["id"]


def test_an_error_crosses_as_the_service_translates_it(ends: tuple[Channel, Channel]) -> None:
    (answer,) = answers(
        ends, request("run"), run=raising(ValueError("bad")), translate=lambda e: {"why": str(e), "n": 1}
    )
    assert {"text": "ValueError: bad", "data": {"why": "bad", "n": 1}} == answer["error"]


@pytest.mark.parametrize(
    "translate",
    [
        pytest.param(lambda e: {"x": object()}, id="data that cannot cross"),
        pytest.param(lambda e: 1 // 0, id="it raises itself"),
    ],
)
def test_a_translation_that_fails_does_not_hide_the_error(ends: tuple[Channel, Channel], translate: Any) -> None:
    (answer,) = answers(ends, request("run"), run=raising(ValueError("bad")), translate=translate)
    assert answer["error"]["text"].startswith("ValueError: bad (and its translation failed: ")
    assert answer["error"]["data"] is None


def test_a_failed_set_up_answers_every_request(ends: tuple[Channel, Channel]) -> None:
    first, second = answers(ends, request(number=1), request("run", number=2), failure=OSError("no chroot"))
    assert [(1, "OSError: no chroot"), (2, "OSError: no chroot")] == [
        (answer["id"], answer["error"]["text"]) for answer in (first, second)
    ]


def test_stop_is_not_an_answer(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(Stop):
        answers(ends, request("run"), run=raising(Stop()))


class Unencodable(Record):
    text: str

    def as_data(self) -> dict[str, Any]:
        return {"text": {self.text}}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        pytest.param(None, "TypeError: the handler of run returned a NoneType", id="nothing"),
        pytest.param(Question("x"), "TypeError: the handler of run returned a Question", id="another record"),
        pytest.param((Answer("x"), [-1]), "TypeError: the handler of run returned 1 descriptors", id="descriptors"),
        pytest.param(Answer("x" * channel.LIMIT), "ChannelError: the reply has 8388", id="too long"),
        pytest.param(Answer({1}), "CodecError: a set cannot be sent", id="not JSON"),  # type: ignore[arg-type]
    ],
)
def test_a_handlers_wrong_result_is_an_error_and_no_reply(
    ends: tuple[Channel, Channel], result: Any, text: str
) -> None:
    def run(request: Question, fds: list[int]) -> Any:
        if isinstance(result, tuple):
            return result[0], [os.open("/dev/null", os.O_RDWR)]
        return result

    before = open_descriptors()
    (answer,) = answers(ends, request("run"), run=run)
    assert answer["error"]["text"].startswith(text)
    assert before == open_descriptors()


def test_a_caller_that_breaks_the_channel_ends_the_loop(ends: tuple[Channel, Channel]) -> None:
    import socket

    with socket.socket(fileno=os.dup(ends[0].fileno())) as sock:
        sock.send(b"X")
    with pytest.raises(ChannelError):
        serve(SERVICE, handlers(), ends[1])


def test_a_caller_that_left_ends_the_loop(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(request("give"), [0])
    ends[0].close()
    before = open_descriptors()
    with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
        serve(SERVICE, handlers(), ends[1])
    assert before == open_descriptors()


def test_handlers_and_verbs_must_be_the_same() -> None:
    check_handlers(SERVICE, handlers())
    table = handlers()
    del table["run"]
    table["walk"] = table["double"]
    with pytest.raises(ValueError, match="service demo: verbs and handlers differ in run, walk"):
        check_handlers(SERVICE, table)


def test_a_deep_error_text_is_sent_whole(ends: tuple[Channel, Channel]) -> None:
    """Longer than a packet: it takes the way of long messages."""
    (answer,) = answers(ends, request("run"), run=raising(ValueError("x" * 100_000)))
    assert 100_000 < len(answer["error"]["text"])
    assert sys.getrecursionlimit() > 0


def test_what_is_done_while_idle_is_done_once_behind_the_first_answer(ends: tuple[Channel, Channel]) -> None:
    seen: list[bool] = []

    def idle() -> None:
        received = ends[0].receive()
        assert received is not None
        seen.append(json.loads(received[0])["id"] == 1)

    assert [2, 3] == [answer["id"] for answer in answers(ends, *(request(number=n) for n in (1, 2, 3)), idle=idle)]
    assert seen == [True]


def test_a_helper_that_could_not_start_does_nothing_while_idle(ends: tuple[Channel, Channel]) -> None:
    def idle() -> None:
        raise AssertionError("called")

    (answer,) = answers(ends, request(), failure=ValueError("no rights"), idle=idle)
    assert "no rights" in answer["error"]["text"]


def test_it_is_done_again_for_as_long_as_it_says_so(ends: tuple[Channel, Channel]) -> None:
    left = [True, True, False]
    assert 5 == len(answers(ends, *(request(number=n) for n in range(1, 6)), idle=lambda: left.pop(0)))
    assert left == []
