"""A service is a table of verbs; a verb is a row: name, type of the request, type of the reply."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol, Self

    class Message(Protocol):
        """A value that can cross: turns itself into JSON-ready data and back, and refuses data of another shape."""

        def as_data(self) -> dict[str, Any]: ...

        @classmethod
        def from_data(cls, data: object) -> Self:
            """Raises ValueError for data of another shape."""
            ...


class Method:
    """One verb.

    request_fds, reply_fds: how many descriptors may come along at most; a packet with more is refused.
    """

    __slots__ = ("name", "reply", "reply_fds", "request", "request_fds")

    def __init__(
        self,
        name: str,
        request: type[Message],
        reply: type[Message],
        *,
        request_fds: int = 0,
        reply_fds: int = 0,
    ) -> None:
        self.name = name
        self.request = request
        self.reply = reply
        self.request_fds = request_fds
        self.reply_fds = reply_fds

    def __repr__(self) -> str:
        return f"Method({self.name}: {self.request.__name__} -> {self.reply.__name__})"


class Service:
    """A named table of verbs.

    unwinds: its handlers change things outside the process and take them back when interrupted. Such a helper gets
        SIGTERM, which raises ``rpc.errors.Stop`` in the handler, and gets time before it is killed.
        All others die at once, so foreign code that never returns cannot keep one alive.
    """

    __slots__ = ("methods", "name", "unwinds")

    def __init__(self, name: str, methods: Iterable[Method], *, unwinds: bool = False) -> None:
        self.name = name
        self.methods: dict[str, Method] = {}
        self.unwinds = unwinds
        for method in methods:
            if method.name in self.methods:
                raise ValueError(f"service {name} has two verbs {method.name}")
            self.methods[method.name] = method

    def __repr__(self) -> str:
        return f"Service({self.name}: {', '.join(self.methods)})"
