"""The process that does nvc-runtime's edits, one after the other: a fork for each took longer than the edit.

It may: an edit enters no namespace, changes no rights, and has all those of the machine's root as its caller does, so
that another process would keep nothing from a config.json that is hostile. What an edit waits for (a file system of the
bundle) keeps none but its own client waiting: while one is under way the others are forks of the server.

It has the attributes of a caller (``nvc.prefork.caller.ProcessAttributes``) and serves those that have the same; of
what else an edit leaves in a process nothing is there for the next one. One after which the process is not what it was
(rights, limits, filters) was its last.
"""

from __future__ import annotations

import array
import gc
import os
import resource
import select
import signal
import socket

from nvc.linux import process, rights
from nvc.prefork import caller, packets, worker
from nvc.prefork import request as prefork_request
from nvc.prefork.request import DESCRIPTORS
from rpc.process import private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.prefork.caller import Caller, ProcessAttributes, Standing
    from nvc.prefork.reaper import Reaper
    from nvc.prefork.request import Programs, Request
    from nvc.prefork.session import Session

#: Edits of one process; then another takes its place.
MAX_EDITS = 256
#: Exit codes of edits after which it is as before: done, and skipped (hook/runtime/__main__.py).
_CLEAN = (0, 3)


class Editor(worker.StandbyWorker):
    """One, for callers with these attributes. ``outcome`` and ``has_begun`` are of the last edit.

    Raises OSError when there is no process or descriptor left.
    """

    def __init__(self, attributes: ProcessAttributes, ours: ProcessAttributes, programs: Programs) -> None:
        super().__init__(ours, programs, wait=lambda end: _wait(end, attributes, ours, programs))
        self.attributes = attributes
        self.lasts = True

    def suits(self, attributes: ProcessAttributes) -> bool:
        """Whether it can do what a caller with these asks for."""
        return attributes == self.attributes and self.fileno() >= 0

    def edit(self, packet: bytes, descriptors: Sequence[int], asking: Caller) -> bool:
        """As ``give``."""
        self.has_begun, self.outcome = False, None
        return self.send(worker.ABOUT.pack(asking.pid, asking.started) + packet, descriptors)


class Editors:
    """The process that does edits, if there is one. idle: while it does none; ``poll`` knows its pidfd."""

    def __init__(self, ours: ProcessAttributes, programs: Programs, poll: select.poll, reaper: Reaper) -> None:
        self._ours, self._programs, self._poll, self._reaper = ours, programs, poll, reaper
        self.idle: Editor | None = None
        self._busy: Editor | None = None
        #: What the last caller had, if another editor would serve it: the first edit of a server is a fork's.
        self._wanted: ProcessAttributes | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether there is to be one, and is none."""
        return self._wanted is not None and self.idle is None and self._busy is None

    def prepare(self) -> None:
        """Start it where it is wanted. Raises OSError."""
        if self._wanted is not None and self.is_wanted:
            self.idle = Editor(self._wanted, self._ours, self._programs)
            self._poll.register(self.idle.pidfd, select.POLLIN)

    def take(self, session: Session) -> Editor | None:
        """It, with the client's request; None: it cannot do that."""
        assert session.attributes is not None
        editor, before = self.idle, self._wanted
        self._wanted = session.attributes if _may_last(session.attributes) else None
        if editor is None:
            return None
        if not editor.suits(session.attributes):
            if before == session.attributes:  # twice: not one engine's callers between another's
                editor.dismiss()
            return None
        if not editor.edit(session.packet, session.descriptors, session.caller):
            return None
        self.idle, self._busy = None, editor
        return editor

    def give_back(self, editor: Editor) -> None:
        """It has done what it was taken for."""
        self.idle, self._busy = editor, None

    def lose(self, editor: Editor) -> None:
        """It ended while it was taken, or its edit lasts: then it was its last."""
        editor.lasts = False
        if self._busy is editor:
            self._busy = None

    def on_exit(self, pidfd: int) -> None:
        """It ended: dismissed, after MAX_EDITS, or killed. There will be another."""
        if self.idle is not None and self._reaper.status(self.idle.pid, pidfd) is not None:
            self.idle.dismiss()
            self._poll.unregister(pidfd)
            os.close(pidfd)
            self.idle = None

    def leave(self) -> None:
        """The server goes: it too, as soon as it is idle."""
        self._wanted = None
        if self.idle is not None:
            self.idle.dismiss()


def _may_last(attributes: ProcessAttributes) -> bool:
    """Whether a process with these may do more than one edit: its processor time is not limited."""
    limits = {number: soft for number, soft, _ in attributes.limits}
    return limits[resource.RLIMIT_CPU] == resource.RLIM_INFINITY


def _wait(end: socket.socket, attributes: ProcessAttributes, ours: ProcessAttributes, programs: Programs) -> int:
    """Its life."""
    worker.begin_to_wait("nvc:[edit]", end)
    caller.apply(attributes, ours)
    _reset_signals()
    own = [os.dup(number) for number in range(3)]
    private.update(own)  # one of them is for words to the agent
    before = _standing()
    for _ in range(MAX_EDITS):
        packet, descriptors = worker.received(end)
        if not packet or len(descriptors) != DESCRIPTORS:
            break
        if not worker.tell(end, worker.TAKEN):
            break
        process.caller, process.caller_started = worker.ABOUT.unpack_from(packet)
        status = _edit(prefork_request.decode(packet[worker.ABOUT.size :]), descriptors, programs)
        _reset_signals()
        # The caller may unmount its directory, or wait for the end of our output, once it has the answer.
        os.chdir("/")
        for number, stream in enumerate(own):
            os.dup2(stream, number)
        worker.close_rest(end.fileno(), *own)
        rights.set_name("nvc:[edit]")
        if not worker.tell(end, worker.OUTCOME.pack(status)):
            return status
        if status not in _CLEAN or _standing() != before:
            break
        gc.collect()
    return 0


def _standing() -> tuple[Standing, ProcessAttributes]:
    return caller.standing("self"), caller.attributes_of(os.getpid())


def _edit(request: Request, descriptors: array.array[int], programs: Programs) -> int:
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.fchdir(descriptors[3])
    packets.close_all(descriptors.tolist())
    worker.be_called(request)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return programs.runtime()


def _reset_signals() -> None:
    """As a program has them, but SIGINT: one that comes before an edit, or late, ends this process without a word."""
    worker.reset_signals()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
