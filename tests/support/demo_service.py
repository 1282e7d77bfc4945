"""A small service with a verb for everything that a helper can do right, and helpers that do it wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from nvc.base.record import Record
from rpc import channel
from rpc.channel import Channel
from rpc.client import Client
from rpc.method import Method, Service
from rpc.process import Process


class Question(Record):
    text: str = ""


class Answer(Record):
    text: str
    numbers: tuple[int, ...] = ()


METHODS = (
    Method("double", Question, Answer),
    Method("run", Question, Answer),
    Method("give", Question, Answer, request_fds=16, reply_fds=16),
)
SERVICE = Service("demo", METHODS)
UNWINDING = Service("careful", METHODS, unwinds=True)


def double(request: Question, fds: list[int]) -> Answer:
    return Answer(request.text * 2)


def give(request: Question, fds: list[int]) -> tuple[Answer, list[int]]:
    """Sends back what it got, after saying what is in it."""
    kept = list(fds)
    fds.clear()
    return Answer(request.text, tuple(os.fstat(fd).st_ino for fd in kept)), kept


def handlers(run: Callable[[Question, list[int]], Any] = double) -> dict[str, Callable[..., Any]]:
    return {"double": double, "run": run, "give": give}


def sleeping(request: Question, fds: list[int]) -> Answer:
    time.sleep(600)
    return Answer("late")


def telling(function: Callable[[], str]) -> Callable[[Question, list[int]], Answer]:
    """A handler whose answer is what ``function`` says in the helper."""
    return lambda request, fds: Answer(function())


def helper(behave: Callable[[Channel], None], service: Service = SERVICE, deadline: float = 5.0) -> Client:
    """A client whose helper is a real process that runs ``behave`` instead of an honest loop."""
    ours, theirs = channel.pair()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ours.close()
            behave(theirs)
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    return Client(service, ours, Process(pid), deadline=deadline)


def answering(*packets: bytes, fds: tuple[int, ...] = ()) -> Callable[[Channel], None]:
    """A behaviour: for every request, the next of these messages, then wait for the end."""

    def behave(end: Channel) -> None:
        for packet in packets:
            end.receive()
            end.send(packet, fds)
        end.receive()

    return behave


def is_reaped(pid: int) -> bool:
    """Neither running nor a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def gone(pid: int, seconds: float = 30) -> bool:
    """Whether ``pid`` is within that time, also when another process reaps it."""
    until = time.monotonic() + seconds
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.01)
    return not os.path.exists(f"/proc/{pid}")


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
