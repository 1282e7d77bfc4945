"""The protocol of the agent's control socket, and a client that waits for its answers.

A request is one line, a JSON object with the key ``verb``; so is each reply:

    {"verb": "pause", "container": "4f0c"}
    {"ok": true}
    {"ok": false, "stage": "input error", "message": "no container '4f0c' ...", "hint": "..."}

A client may send several requests on one connection, one after the other. ``events`` is different: after
``{"ok": true}`` the agent sends lines until the client goes. ``status`` comes in pages (nvc.agent.status.ask). No line
is longer than LIMIT, and neither side waits longer than TIMEOUT for the other to finish a line that it began. VERBS has
the rights that each verb needs.
"""

from __future__ import annotations

import _socket  # socket builds enums, which is a tenth of a hook that asks the agent
import errno
import struct
import time

from nvc.base.errors import BY_STAGE, AgentError, NvcError, PrivilegeError, reason
from nvc.base.progress import waiting
from nvc.base.record import Record
from rpc.codec import CodecError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Self

#: The agent's directory (root, 0711), and in it: the control socket, the one that runtimes send listeners to.
DIRECTORY = "/run/nvc/agent"
CONTROL = f"{DIRECTORY}/control"
LISTEN = f"{DIRECTORY}/listen"
#: A line's length at most, its newline included.
LIMIT = 1 << 20
#: Seconds for the rest of a line that has begun, and for an answer.
TIMEOUT = 10.0
#: Members of this group (beside root) may say the verbs that only read.
GROUP = "nvc"


class Verb(Record):
    """A word of the protocol. reads: nothing changes by it, so the group may say it too.

    needs, takes: names of the request's fields with their types ("str", "int", "float", "bool").
    """

    name: str
    reads: bool
    needs: dict[str, str] = {}
    takes: dict[str, str] = {}


_CONTAINER = {"container": "str"}
_TARGET = {"container": "str", "pid": "int"}
_BUNDLE = {"device": "int", "inode": "int"}
#: Why each may be said: root owns the machine; the group sees what `nvidia-smi` would show it anyway, and denials.
VERBS = {
    verb.name: verb
    for verb in (
        # after: the last tenant of the page before, by its id. container: only the tenant of this container, by its
        # whole id or key.
        Verb("status", True, {}, {"after": "int", "container": "str"}),
        # Denials and what happened to tenants, as lines, from now on.
        Verb("events", reads=True),
        # spec: as `nvc-py share set` takes it, for the GPU that `gpu` selects, or all. force: beyond the maximum.
        Verb("set", False, {**_CONTAINER, "spec": "str"}, {"gpu": "str", "force": "bool"}),
        Verb("pause", False, _CONTAINER),
        # Also ends a suspend; wait: seconds for the GPU's memory.
        Verb("resume", False, _CONTAINER, {"wait": "float"}),
        # Write down what was used up to now, for `nvc-py share usage`.
        Verb("usage", False),
        # timeout: seconds for work that has begun.
        Verb("suspend", False, _CONTAINER, {"timeout": "float"}),
        # policy: a name or number of nvc.guard.scheduling; gpu: a UUID, or all.
        Verb("policy", False, {"policy": "str"}, {"gpu": "str"}),
        # word: of nvc.guard.service.HINTS. Root's alone: it makes other containers' slices short.
        Verb("hint", False, {**_CONTAINER, "word": "str"}),
        Verb("attach", False, {}, {**_TARGET, "weight": "int", "cap": "str", "probes": "int"}),
        Verb("detach", False, {}, _TARGET),
        Verb("reload", False),
        # What nvc-runtime and the share step say of a container (nvc.agent.registrations). bundle: its path; device,
        # inode: of that directory. runtime: the process that becomes the runtime, if not the caller; started: when it
        # did. pid: of the first process. bind without a container goes by the pid alone.
        Verb("register", False, {**_CONTAINER, "bundle": "str", **_BUNDLE}, {"runtime": "int", "started": "int"}),
        Verb("bind", False, {"pid": "int"}, {**_CONTAINER, **_BUNDLE}),
        # Of a start that holds the store's lock; the rest of its fields are nvc/share/fits.py's.
        Verb("fits", False),
        # The rest of its fields are nvc/prefork/server.py's.
        Verb("configure", False),
    )
}
#: Verbs whose fields their handlers check.
_FREE = ("configure", "fits")
_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}


class Encoded(bytes):
    """JSON of a field's value, for ``encode`` to put where it belongs."""


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as its line. Raises AgentError when it is too long, or JSON cannot carry it."""
    fields = []
    try:
        for name, value in message.items():
            fields.append(dumps(name) + b":" + (value if isinstance(value, Encoded) else dumps(value)))
    except CodecError as error:
        raise AgentError(f"a message cannot be sent: {error}") from error
    line = b"{%b}\n" % b",".join(fields)
    if len(line) > LIMIT:
        raise AgentError(f"a message of {len(line)} bytes is longer than {LIMIT}")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line, with or without its newline. Raises AgentError with the place of what is wrong."""
    try:
        message = loads(line, limit=LIMIT)
    except CodecError as error:
        raise AgentError(f"a line is no message: {error}") from None
    if not isinstance(message, dict):
        raise AgentError(f"a line is no message: expected an object, got {type(message).__name__}")
    return message


def check(request: Mapping[str, Any]) -> Verb:
    """The verb of a request with the right fields. Raises AgentError that names the verb or field."""
    word = request.get("verb")
    verb = VERBS.get(word) if isinstance(word, str) else None
    if verb is None:
        raise AgentError(f"no verb {str(word)[:40]!r}", hint=f"there are {', '.join(VERBS)}")
    if verb.name in _FREE:
        return verb
    known = {**verb.needs, **verb.takes}
    for field, value in request.items():
        if field == "verb":
            continue
        if field not in known:
            raise AgentError(f"{verb.name} has no field {field[:40]!r}")
        kind = _TYPES[known[field]]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise AgentError(f"{verb.name}: {field} is to be a {known[field]}, not a {type(value).__name__}")
    for field in verb.needs:
        if field not in request:
            raise AgentError(f"{verb.name} needs the field {field}")
    return verb


def failure(error: NvcError) -> dict[str, Any]:
    """The reply that tells of an error."""
    return {"ok": False, "stage": error.stage, "message": error.message, "hint": error.hint}


def result(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without its ``ok``. Raises the NvcError that it tells of, as the class of its stage."""
    if reply.get("ok") is True:
        return {field: value for field, value in reply.items() if field != "ok"}
    kind = BY_STAGE.get(str(reply.get("stage")), AgentError)
    raise kind(str(reply.get("message", "the agent gave no reason")), hint=str(reply.get("hint", "")))


_UCRED = struct.Struct("=iII")


class NoAgent(AgentError):
    """No agent listens."""


class NoAnswer(AgentError):
    """An agent is there, and does not answer in time."""


class Client:
    """A connection to the agent, for one thread. A context manager."""

    def __init__(self, path: str = CONTROL, timeout: float = TIMEOUT, wait: float = 0.0) -> None:
        """Connect. timeout: seconds for each answer. wait: seconds for another agent, where one was killed.

        Raises NoAgent, NoAnswer, PrivilegeError when the socket may not be opened, AgentError; with ``wait``, NoAgent
        only where the node has no agent: one that was killed leaves its socket's name, one that was stopped does not.
        """
        self.path = path
        self._rest = b""
        self._timeout: float | None = timeout
        begun = time.monotonic()
        until = begun + wait
        while True:
            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            self._socket.settimeout(timeout)
            try:
                self._socket.connect(path)
                return
            except OSError as error:
                self._socket.close()
                if error.errno == errno.EAGAIN:  # connections that the agent has not accepted fill the socket's queue
                    if time.monotonic() > begun + timeout:
                        raise _no_answer(path, timeout) from None
                elif not wait or error.errno != errno.ECONNREFUSED:
                    raise _unreachable(path, error) from None
                elif time.monotonic() > until:
                    raise AgentError(
                        f"{path}: the agent of this node has ended, and no other one began within {wait:g} s",
                        hint=f"start it: systemctl start nvc-agent; to be without one, remove {path}",
                    ) from None
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """A second time is nothing."""
        self._socket.close()

    def fileno(self) -> int:
        """The connection's descriptor: readable when an event has begun to arrive."""
        return self._socket.fileno()

    def peer(self) -> int:
        """The uid of the process that listens."""
        found = self._socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(found)[1])

    def call(self, verb: str, **fields: object) -> dict[str, Any]:
        """Say a verb; the fields of its reply. None as a field's value leaves it out.

        Raises AgentError, or the NvcError that the agent answered with.
        """
        self.send(verb, **fields)
        with waiting("the agent has not answered yet"):
            return self.receive()

    def send(self, verb: str, **fields: object) -> None:
        """Say a verb, whose reply ``receive`` gives. Raises AgentError."""
        request = {"verb": verb, **{name: value for name, value in fields.items() if value is not None}}
        check(request)
        try:
            self._socket.sendall(encode(request))
        except OSError as error:
            raise AgentError(f"{self.path}: {reason(error)}", hint="the agent went away; try again") from None

    def receive(self) -> dict[str, Any]:
        """The fields of the reply to what was said. Raises AgentError, or the NvcError that the agent answered with."""
        return result(self._message())

    def events(self, begun: Callable[[], None] = lambda: None) -> Iterator[dict[str, Any]]:
        """Events from now on, until the agent or the caller ends; waits without a limit. Raises AgentError.

        begun: called when the agent has answered that it sends them.
        """
        self.call("events")
        begun()
        self._timeout = None
        while True:
            try:
                yield self._message()
            except _End:
                return

    def _message(self) -> dict[str, Any]:
        until = None if self._timeout is None else time.monotonic() + self._timeout
        while b"\n" not in self._rest:
            self._socket.settimeout(None if until is None else max(until - time.monotonic(), 1e-6))  # 0: do not wait
            if len(self._rest) > LIMIT:
                raise AgentError(f"{self.path}: a line longer than {LIMIT} bytes")
            try:
                more = self._socket.recv(65536)
            except TimeoutError:
                self.close()  # the answer to come would be taken for that of the next request
                raise _no_answer(self.path, self._timeout or 0) from None
            except OSError as error:
                raise AgentError(f"{self.path}: {reason(error)}", hint="the agent went away; try again") from None
            if not more:
                raise _End(f"{self.path}: closed by the agent", hint="see its log (journalctl -u nvc-agent)")
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return decode(line)


class _End(AgentError):
    """The agent closed the connection."""


def _no_answer(path: str, seconds: float) -> NoAnswer:
    return NoAnswer(
        f"{path}: the agent does not answer (no answer came within {seconds:g} s)",
        hint="containers that run are guarded without it; see its log (journalctl -u nvc-agent), then systemctl "
        "restart nvc-agent",
    )


def _unreachable(path: str, error: OSError) -> NvcError:
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return NoAgent(f"no agent listens at {path}", hint="start one: systemctl start nvc-agent, or nvc-py agent")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PrivilegeError(f"{path}: {reason(error)}", hint=f"root and the group {GROUP} may ask the agent")
    return AgentError(f"{path}: {reason(error)}")
