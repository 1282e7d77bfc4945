"""Whether a start's requests fit beside all others, asked of the agent, which has the sums: the store need not be read.

The start holds the store's lock: what others did before is in the sums (``nvc.agent.promised``). Those count entries
until they are removed, so only a yes is an answer; after all else the store decides.
"""

from __future__ import annotations

import os

from nvc.base.errors import NvcError
from nvc.base.record import Record
from nvc.share import admission
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu, Room
from nvc.share.protocol import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.share.admission import Promises

#: Seconds for the answer; all that start wait as long, for the lock.
SECONDS = 1.0


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
    try:
        with Client(control, SECONDS) as client:
            return client.peer() == os.geteuid() and client.call("fits", **question.as_data()).get("fits") is True
    except (NvcError, OSError):
        return False


def check(question: Question, promises: Promises) -> None:
    """Raises ContainerError where it does not fit."""
    admission.check(question.rooms, Limits(question.wanted), promises, own=question.own)
