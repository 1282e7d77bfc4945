"""An agent that only speaks the control protocol: for what asks agents. Each verb is answered by a function."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

from nvc.base.errors import NvcError
from nvc.share.protocol import decode, encode, failure

#: From a request to the messages that follow it: one, for most verbs; the stream, for ``events``.
Answer = Callable[[dict[str, Any]], Iterable[dict[str, Any]]]


class FakeAgent:
    """Listens at ``path`` until it is closed; a context manager. Connections are served side by side."""

    def __init__(self, path: str, **answers: Answer) -> None:
        self.path = path
        self.asked: list[dict[str, Any]] = []
        self.answers = answers
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(8)
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection, as an agent does that is killed. A second time is nothing."""
        for one in (self._listener, *self._connections):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has gone already
        for thread in tuple(self._threads):
            thread.join(10)
        self._listener.close()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                for line in lines:
                    request = decode(line)
                    self.asked.append(request)
                    try:
                        for message in self.answers[request["verb"]](request):
                            connection.sendall(encode(message))
                    except NvcError as error:
                        connection.sendall(encode(failure(error)))
            except OSError:
                return
