"""The address where Prometheus reads the agent's metrics: GET /metrics, in its text format or in OpenMetrics.

The agent wires it in with one call, in its own loop:

    server = await metrics.serve(config.metrics, status, hami=config.metrics_hami)

Reading needs no right: what is said are sizes, times and names of containers. So the address is this machine's own
unless the configuration says otherwise. The metrics themselves are the rows of ``rows`` and ``hami``.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING

from nvc.agent.metrics.exposition import text
from nvc.base.errors import AgentError, InputError, reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nvc.agent.status import AgentStatus

PATH = "/metrics"
ADDRESS = "127.0.0.1:9400"
#: A request's head is no longer, and takes no longer to arrive; seconds. So many are served at a time: one more takes
#: the place of the oldest that has not asked yet.
HEAD_LIMIT, CLIENT_TIMEOUT_S, CONNECTIONS = 8192, 5.0, 16
_PAGE = b"nvc-py agent: metrics are at /metrics\n"


def parse(address: str) -> tuple[str, int]:
    """(host, port) of "127.0.0.1:9400", "[::1]:9400" or ":9400", which is every address. Raises InputError."""
    host, colon, port = address.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host:
        colon = ""
    if not colon or not 0 <= number <= 65535:
        raise InputError(
            f"[agent] metrics: {address!r} is no address and port", hint=f'write metrics = "{ADDRESS}", or "" for none'
        )
    return host, number


async def serve(
    address: str, status: Callable[[], Awaitable[AgentStatus]], *, hami: bool = False, limit: int = CONNECTIONS
) -> asyncio.Server:
    """Begin to answer at ``address``; close the server to end. status: called in the loop, for each reading.

    Raises InputError for what is no address, AgentError when it cannot be had.
    """
    host, port = parse(address)
    endpoint = _Endpoint(status, hami, limit)
    try:
        return await asyncio.start_server(endpoint.connected, host or None, port, limit=HEAD_LIMIT)
    except OSError as error:
        why = reason(error) if error.errno and error.errno > 0 else error
        raise AgentError(
            f"metrics at {address}: {why}", hint="choose another address: [agent] metrics in /etc/nvc/config.toml"
        ) from None


class _Waits(enum.Enum):
    """What we wait for with a connection: to be asked, nothing (the page is being made), our answer to be read."""

    ASKED = enum.auto()
    NOT = enum.auto()
    READ = enum.auto()


class _Endpoint:
    def __init__(self, status: Callable[[], Awaitable[AgentStatus]], hami: bool, limit: int) -> None:
        self._status = status
        self._hami = hami
        self._limit = limit
        #: Connections, oldest first, and what each is for.
        self._open: dict[asyncio.StreamWriter, _Waits] = {}
        # A page of 2,000 tenants takes seconds and megabytes: one at a time, and written beside the loop.
        self._one = asyncio.Lock()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._has_room():
                await _last(writer, _answer(503, b"too many readers\n"))
                return
            self._open[writer] = _Waits.ASKED
            async with asyncio.timeout(CLIENT_TIMEOUT_S):  # wait_for of Python 3.11 can lose a cancellation
                head = await reader.readuntil(b"\r\n\r\n")
            self._now(writer, _Waits.NOT)
            answer = await self._page(head)
            self._now(writer, _Waits.READ)
            await _last(writer, answer)
        except asyncio.LimitOverrunError:
            await _last(writer, _answer(431, b"the request is too long\n"))
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass  # the client has gone, or has asked for nothing
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _has_room(self) -> bool:
        """For one more. Else the oldest goes that keeps us waiting: any user of the machine may connect."""
        if len(self._open) < self._limit:
            return True
        for waits in (_Waits.ASKED, _Waits.READ):
            for writer, what in self._open.items():
                if what is waits:
                    del self._open[writer]
                    writer.transport.abort()
                    return True
        return False

    def _now(self, writer: asyncio.StreamWriter, waits: _Waits) -> None:
        """Raises ConnectionResetError for a connection that had to make room meanwhile."""
        if writer not in self._open:
            raise ConnectionResetError
        self._open[writer] = waits

    async def _page(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _answer(400, b"no HTTP request\n")
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _answer(405, b"only GET and HEAD\n", extra="Allow: GET, HEAD\r\n")
        if path == "/":
            return _answer(200, _PAGE, empty=method == "HEAD")
        if path != PATH:
            return _answer(404, _PAGE, empty=method == "HEAD")
        fields = (line.partition(":") for line in lines[1:])
        accept = next((value.strip() for name, _, value in fields if name.strip().lower() == "accept"), "")
        try:
            async with self._one:
                status = await self._status()
                loop = asyncio.get_running_loop()
                page, kind = await loop.run_in_executor(None, lambda: text(status, hami=self._hami, accept=accept))
        except Exception as error:
            # Whatever it is: the answer says it, and the agent goes on.
            return _answer(500, f"no metrics: {type(error).__name__}: {error}\n".encode())
        return _answer(200, page, kind, empty=method == "HEAD")


async def _last(writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Send it and end the connection, also of a client that does not read."""
    writer.write(answer)
    writer.close()
    try:
        async with asyncio.timeout(CLIENT_TIMEOUT_S):
            await writer.wait_closed()
    except (TimeoutError, OSError):
        writer.transport.abort()


_WORDS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def _answer(
    code: int, body: bytes, kind: str = "text/plain; charset=utf-8", *, empty: bool = False, extra: str = ""
) -> bytes:
    """empty: as for HEAD, which gets the length alone."""
    head = (
        f"HTTP/1.1 {code} {_WORDS[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if empty else body)
