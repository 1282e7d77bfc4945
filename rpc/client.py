"""The caller's side: one call at a time, each with a deadline, and a helper that is always reaped."""

from __future__ import annotations

import errno
import time

from rpc import channel, codec
from rpc.errors import NOT_PROCESSED, TIMED_OUT, ChannelError, RemoteError
from rpc.stop import CHANGE_TIMEOUT_S, MAX_SECONDS, UNWIND_LIMIT_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn, Self

    from rpc.channel import Channel
    from rpc.method import Message, Method, Service
    from rpc.process import Process

#: Seconds until a helper must have exited after end of file.
EXIT_TIMEOUT_S = 1.0
#: Seconds until a service that unwinds must have undone its changes after SIGTERM: the change under way, and undo.
UNWIND_TIMEOUT_S = CHANGE_TIMEOUT_S + UNWIND_LIMIT_S


class ProtocolError(Exception):
    """The helper's reply violates the protocol."""


class Client:
    """Calls the verbs of one helper, and ends it. Made by ``rpc.process.start``.

    After a timeout or a protocol error the helper is ended; later calls fail with the same cause. An error that the
    handler raised does not end it.
    """

    def __init__(self, service: Service, end: Channel, process: Process, *, deadline: float) -> None:
        self._service = service
        self._channel = end
        self._process = process
        self._deadline = deadline
        self._number = 0
        self._broken: RemoteError | None = None
        self._waiting = False

    @property
    def pid(self) -> int:
        """The helper's process id, also after its end."""
        return self._process.pid

    @property
    def closed(self) -> bool:
        """No call is possible any more."""
        return self._channel.fileno() < 0

    @property
    def running(self) -> bool:
        """Whether the helper has not ended."""
        return not self.closed and not self._process.wait(0)

    def descriptors(self) -> tuple[int, ...]:
        """The socket and the pidfd, which must stay open when a process closes all that it does not need."""
        return tuple(number for number in (self._channel.fileno(), self._process.fileno()) if number >= 0)

    def allow(self, seconds: float) -> None:
        """Set the default deadline of a call, in seconds."""
        self._deadline = seconds

    def call(self, verb: str, request: Message, fds: Sequence[int] = (), deadline: float | None = None) -> Any:
        """The reply of ``verb``, of the type its row says.

        fds: descriptors to send copies of. deadline: seconds, or None for the service's own.
        Raises RemoteError; KeyError for a verb that the service does not have (a mistake in the program).
        """
        reply, returned = self.call_with_fds(verb, request, fds, deadline)
        if returned:
            channel.close_all(returned)
            raise RemoteError(self._service.name, verb, NOT_PROCESSED, "a reply with unexpected descriptors")
        return reply

    def call_with_fds(
        self, verb: str, request: Message, fds: Sequence[int] = (), deadline: float | None = None
    ) -> tuple[Any, list[int]]:
        """As ``call``; the reply and the descriptors that came with it, which are the caller's to close."""
        return self.begin(verb, request, fds, deadline).result()

    def begin(self, verb: str, request: Message, fds: Sequence[int] = (), deadline: float | None = None) -> Pending:
        """Send a request and return: the helper works while the caller does something else.

        Arguments as ``call``'s; the deadline runs from now. Raises RemoteError when nothing could be sent, and
        RuntimeError while another answer has not been taken (a mistake in the program).
        """
        method = self._service.methods[verb]
        seconds = self._deadline if deadline is None else deadline
        if self._broken is not None:
            raise self._failure(verb, self._broken.cause, f"the helper has ended: {self._broken.detail}")
        if self.closed:
            raise self._failure(verb, NOT_PROCESSED, "the service is closed")
        if self._waiting:
            raise RuntimeError(f"{verb} was called before the answer to another call was taken")
        self._number += 1
        message = self._encode(verb, request, min(max(seconds, 0.0), MAX_SECONDS))
        until = time.monotonic() + seconds
        problem: Exception | None = None
        try:
            self._channel.send(message, fds, until)
        except (ChannelError, OSError, ValueError, TypeError) as error:
            problem = error
        self._waiting = True
        return Pending(self, method, until, seconds, problem)

    def has_message(self, end: float, until: float) -> bool:
        """What ``Pending.is_ready`` calls. end: until when to wait; until: the call's deadline."""
        return self.closed or self._channel.is_readable(end) or time.monotonic() >= until

    def finish(self, pending: Pending) -> tuple[Any, list[int]]:
        """What ``Pending.result`` calls."""
        method, verb = pending.method, pending.method.name
        self._waiting = False
        received: list[int] = []
        try:
            if pending.problem is not None:
                raise pending.problem
            answer = self._channel.receive(pending.until)
            if answer is None:
                raise ConnectionResetError(errno.ECONNRESET, "end of file")
            text, received = answer
            value, error = self._decode(text)
            if error is None:
                if len(received) > method.reply_fds:
                    raise ProtocolError(f"{len(received)} descriptors, not {method.reply_fds}")
                return method.reply.from_data(value), received
        except channel.DeadlinePassed:
            channel.close_all(received)
            self._break(verb, TIMED_OUT, f"no answer in {pending.seconds:g} s")
        except (ProtocolError, ChannelError, ValueError, TypeError) as problem:
            channel.close_all(received)
            self._break(verb, NOT_PROCESSED, f"unreadable reply: {problem}")
        except OSError as problem:
            channel.close_all(received)
            if problem.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                self._break(verb, NOT_PROCESSED, f"the channel failed: {problem.strerror}")
            self._break(verb, NOT_PROCESSED, None)
        channel.close_all(received)
        raise self._failure(verb, NOT_PROCESSED, error[0], error[1])

    def _encode(self, verb: str, request: Message, seconds: float) -> bytes:
        """Raises RemoteError for what cannot be sent; nothing was, so the helper stays usable."""
        try:
            message = codec.dumps({"id": self._number, "verb": verb, "seconds": seconds, "request": request.as_data()})
        except ValueError as problem:
            raise self._failure(verb, NOT_PROCESSED, f"the request cannot be sent: {problem}") from problem
        if len(message) > channel.LIMIT:
            raise self._failure(verb, NOT_PROCESSED, f"the request has {len(message)} bytes")
        return message

    def _decode(self, text: bytes) -> tuple[Any, tuple[str, dict[str, Any] | None] | None]:
        """(value, None) or (None, (text, data)); raises ProtocolError and CodecError."""
        data = codec.loads(text)
        if not isinstance(data, dict):
            raise ProtocolError("not an object")
        number = data.get("id")
        if type(number) is not int or number != self._number:
            raise ProtocolError(f"an answer to call {number!r}, not to {self._number}")
        if sorted(data) == ["id", "reply"]:
            return data["reply"], None
        error = data.get("error")
        if sorted(data) != ["error", "id"] or not isinstance(error, dict) or sorted(error) != ["data", "text"]:
            raise ProtocolError("neither reply nor error")
        if not isinstance(error["text"], str) or not isinstance(error["data"], dict | None):
            raise ProtocolError("an error of another shape")
        return None, (error["text"], error["data"])

    def _failure(self, verb: str, cause: str, detail: str, data: dict[str, Any] | None = None) -> RemoteError:
        return RemoteError(self._service.name, verb, cause, detail, data)

    def _break(self, verb: str, cause: str, detail: str | None) -> NoReturn:
        """End the helper, which broke the protocol or died, and raise. detail: None for how the helper ended."""
        self._channel.close()
        if detail is None:
            self._process.wait(EXIT_TIMEOUT_S)
            detail = self._process.ending()
        self._broken = self._failure(verb, cause, detail)
        self._end_process()
        raise self._broken

    def _end_process(self) -> None:
        process = self._process
        if self._service.unwinds and process.running:
            process.terminate()
            process.wait(UNWIND_TIMEOUT_S)
        process.kill()

    def close(self, *, wait: bool = True) -> None:
        """End and reap the helper: end of file, SIGTERM (services that unwind), SIGKILL. May be repeated.

        Returns within EXIT_TIMEOUT_S, UNWIND_TIMEOUT_S and two seconds for SIGKILL.
        wait: False returns as soon as the helper's ``on_shutdown`` has returned; ``reap`` then waits for its exit.
        """
        if self.closed:
            return
        self._channel.finish()
        if not wait and self._has_shut_down():
            self._channel.close()
            return
        self._process.wait(EXIT_TIMEOUT_S)
        self._channel.close()
        self._end_process()

    def finish_requests(self) -> None:
        """Send no other request: the helper ends after the answer to the last one, also while its caller takes that."""
        self._channel.finish()

    def leave(self) -> None:
        """Let the helper end without a wait, also for ``on_shutdown``; ``reap`` waits for its exit."""
        self._channel.close()

    def _has_shut_down(self) -> bool:
        """Wait for the helper to close its end, which it does after ``on_shutdown``."""
        until = time.monotonic() + EXIT_TIMEOUT_S
        try:
            while (received := self._channel.receive(until)) is not None:
                channel.close_all(received[1])  # the reply of a call without ``result``
        except ConnectionResetError:
            return True  # with a request in its receive queue
        except (ChannelError, OSError):
            return False
        return True

    def reap(self) -> None:
        """Wait for the exit of the helper after ``leave`` or ``close(wait=False)``; end it after EXIT_TIMEOUT_S."""
        if self.closed:
            self._process.wait(EXIT_TIMEOUT_S)
            self._end_process()

    def forget(self) -> None:
        """Close the descriptors without ending the helper: in a process forked later, of which it is no child."""
        self._channel.close()
        self._process.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pending:
    """A call that was sent. Its answer must be taken, once."""

    __slots__ = ("_client", "method", "problem", "seconds", "until")

    def __init__(self, client: Client, method: Method, until: float, seconds: float, problem: Exception | None) -> None:
        self._client = client
        self.method = method
        self.until = until
        self.seconds = seconds
        self.problem = problem

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Whether ``result`` does not wait: the reply is there, or a failure. seconds: wait for that."""
        return self.problem is not None or self._client.has_message(
            min(self.until, time.monotonic() + seconds), self.until
        )

    def allow(self, seconds: float) -> None:
        """Let the deadline run from now."""
        self.until, self.seconds = time.monotonic() + seconds, seconds

    def result(self) -> tuple[Any, list[int]]:
        """Wait for the reply; it, and the descriptors that came with it. Raises RemoteError."""
        return self._client.finish(self)
