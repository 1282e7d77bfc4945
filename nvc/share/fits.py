"""Whether a start's requests fit beside all others, asked of the agent, which has the sums: the store need not be read.

The start holds the store's lock: what others did before is in the sums (``nvc.agent.promised``). Those count entries
until they are removed, so only a yes is an answer; after all else the store decides.
"""

from __future__ import annotations

import _socket  # socket builds enums
import os
import struct
import time

from nvc.base.record import Record
from nvc.share import admission
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu, Room
from rpc.codec import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.share.admission import Promises

#: The verb of the agent's control socket (``nvc.guard.protocol``).
VERB = "fits"
#: Seconds for the answer; all that start wait as long, for the lock.
SECONDS = 1.0
#: Bytes of an answer at most.
_LIMIT = 64 << 10
_UCRED = struct.Struct("=iII")


class Question(Record):
    """The arguments of ``nvc.share.admission.check``; wanted: the GPUs of its limits.

    device, inode: of the store's directory, which is to be the agent's.
    """

    device: int
    inode: int
    own: str
    rooms: tuple[Room, ...]
    wanted: tuple[ResolvedGpu, ...]


def ask(control: str, question: Question) -> bool:
    """False where it does not fit, and where the agent does not say that it does in time. Raises nothing.

    control: the agent's control socket.
    """
    until = time.monotonic() + SECONDS
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(SECONDS)
        connection.connect(control)
        found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _UCRED.size)
        if _UCRED.unpack(found)[1] != os.geteuid():
            return False
        connection.sendall(dumps({"verb": VERB, **question.as_data()}) + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            connection.settimeout(until - time.monotonic())  # ValueError for less than 0
            more = connection.recv(_LIMIT)
            if not more or len(answer) > _LIMIT:
                return False
            answer += more
        reply = loads(answer, limit=2 * _LIMIT)
    except (OSError, ValueError):
        return False
    finally:
        connection.close()
    return isinstance(reply, dict) and reply.get("ok") is True and reply.get("fits") is True


def check(question: Question, promises: Promises) -> None:
    """Raises ContainerError where it does not fit."""
    admission.check(question.rooms, Limits(question.wanted), promises, own=question.own)
