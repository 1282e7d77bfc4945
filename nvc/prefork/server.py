"""The pre-fork server: everything that a container's start needs is imported; each request is done by a fork of it.

Started by the agent (``nvc.agent.standby``) as a program of its own: the agent has threads, and a fork of a process
with threads may do nothing but execute. It has one thread, changes nothing itself, and enters no namespace.

It serves until SIGTERM (the agent renews it, or ends): then it takes no more, lets what runs come to its end, and goes.
A client that goes away takes its work with it: the process that does it is killed, and its helpers take back what they
did (docs/internals/prefork.md).
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import time

from nvc.driver import inventory
from nvc.linux import memory
from nvc.prefork import caller as prefork_caller
from nvc.prefork import packets, worker
from nvc.prefork import request as prefork_request
from nvc.prefork.caller import UNATTAINABLE, Caller, Unattainable
from nvc.prefork.closer import Closer
from nvc.prefork.editor import Editor, Editors
from nvc.prefork.reaper import Reaper
from nvc.prefork.request import CDI, DESCRIPTORS, LIMIT, RUNTIME, Programs, Refused
from nvc.prefork.runtimes import Runtimes
from nvc.prefork.session import CLIENT_TIMEOUT_S, Session
from nvc.prefork.worker import StandbyWorker

#: At once: as many containers as an engine starts together, some times over. Above it clients help themselves.
MAX_SESSIONS = 256
#: Exit status of a pre-fork server whose modules have been replaced on the disk: the agent starts another.
STALE = 75
#: Seconds between two standby workers when one did not last.
RESPAWN_DELAY_S = 1.0
#: Seconds in which a container that was edited, or has its hooks run, starts: none is forked beside it.
START_S = 0.3
#: Seconds in which a process that waited begins, or is ended (a container's root with the machine's processes can stop
#: it); and of work, after which it counts no more: another process is made to wait beside it.
LATE_S = 2.0

_STATUS = struct.Struct("=ci")
#: Connections taken before other clients' turn: callers that keep on connecting hold up no work.
_MAX_ACCEPTED = 32
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Server:
    """The loop. ``listener`` is non-blocking. library: the directory of our packages. inventory: the machine's file."""

    def __init__(self, listener: socket.socket, library: str, programs: Programs, inventory: str) -> None:
        self._listener = listener
        self._library = library
        self._programs = programs
        self._inventory = inventory
        self._stamp = prefork_request.stamp_of(library)
        self._ours = prefork_caller.standing("self")
        self._attributes = prefork_caller.attributes_of(os.getpid())
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        #: By the descriptor of its connection, and of its process.
        self._sessions: dict[int, Session] = {}
        self._working: dict[int, Session] = {}
        #: By the descriptor that a worker tells its outcome by, if it was forked in advance.
        self._speaking: dict[int, Session] = {}
        self._runtimes = Runtimes()
        self._closer = Closer(worker.start)
        self._serving = True
        self._standby: StandbyWorker | None = None
        self._reaper = Reaper()
        self._editors = Editors(self._attributes, programs, self._poll, self._reaper)
        #: No other standby worker before this moment: one that was killed is replaced, but not at full speed.
        self._not_before = 0.0
        self.status, self._has_warned = 0, False

    def run(self, wake: int) -> int:
        """Serve until SIGTERM and until all that was begun has ended; the exit status. wake: readable at a signal."""
        self._poll.register(wake, select.POLLIN)
        while self._serving or self._sessions or self._working or self._standby or self._editors.idle:
            for descriptor, event in self._poll.poll(self._wait()):
                if descriptor == wake:
                    os.read(wake, 64)
                    self.leave(0)
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif self._standby is not None and descriptor == self._standby.pidfd:
                    self._on_standby_exit(self._standby)
                elif self._editors.idle is not None and descriptor == self._editors.idle.pidfd:
                    self._editors.on_exit(descriptor)
                    self._not_before = max(self._not_before, time.monotonic() + RESPAWN_DELAY_S)
                elif descriptor in self._speaking:
                    self._on_worker_message(self._speaking[descriptor])
                elif descriptor in self._working:
                    self._on_worker_exit(self._working[descriptor])
                elif descriptor in self._sessions:
                    self._on_packet(self._sessions[descriptor], event)
            self._forget_slow()
            self._reaper.collect()
            self.prepare()
        return self.status

    def prepare(self) -> None:
        """Fork the standby worker and what does edits, unless there is work: it would be in its way."""
        if not self._serving or time.monotonic() < self._not_before or self._is_at_work():
            return
        try:
            self._editors.prepare()
            if self._standby:
                return
            inventory.read_ahead(self._inventory)
            self._standby = StandbyWorker(self._attributes, self._programs)
        except OSError:
            self._not_before = time.monotonic() + RESPAWN_DELAY_S  # no process or descriptor is left
        else:
            self._poll.register(self._standby.pidfd, select.POLLIN)
            memory.prefault()  # the fork made our pages shared: now, not with the next client

    def _on_standby_exit(self, standby: StandbyWorker) -> None:
        """Dismissed; or killed, then there will be another."""
        if self._reaper.status(standby.pid, standby.pidfd) is not None:
            standby.dismiss()
            self._poll.unregister(standby.pidfd)
            os.close(standby.pidfd)
            self._standby = None
            self._not_before = time.monotonic() + RESPAWN_DELAY_S

    def leave(self, status: int) -> None:
        """Take no more. What waits in the socket's queue is for the next one, which has the same socket."""
        if self._serving:
            self._serving = False
            self.status = status
            if status == STALE:
                os.write(1, b"stale\n")  # at once: what runs may take a while
            self._poll.unregister(self._listener)
            self._editors.leave()
            if self._standby is not None:
                self._standby.dismiss()
            for session in list(self._sessions.values()):
                if not session.pid:
                    self._close(session)

    def _is_at_work(self) -> bool:
        return any(session.until < math.inf for session in self._working.values())

    def _wait(self) -> int | None:
        """Milliseconds until a client, or its work, has been too slow, or a standby worker is due."""
        moments = [session.until for table in (self._sessions, self._working) for session in table.values()]
        if self._serving and not self._is_at_work() and (not self._standby or self._editors.is_wanted):
            moments.append(self._not_before)
        first = min(moments, default=math.inf)
        return max(0, int((first - time.monotonic()) * 1000) + 1) if first < math.inf else None

    def _forget_slow(self) -> None:
        now = time.monotonic()
        for session in {*self._sessions.values(), *self._working.values()}:
            if session.until >= now:
                continue
            if session.pid:
                self._on_late_work(session)
                continue
            # This server may have been the slow one: its packet can have come while others were served.
            before = session.request
            self._on_packet(session, select.POLLIN)
            if session.request is not before:
                session.until = now + CLIENT_TIMEOUT_S
            elif not session.pid:
                self._close(session)

    def _on_late_work(self, session: Session) -> None:
        """It has not begun, or is not done."""
        session.until = math.inf
        standby = session.standby
        if isinstance(standby, Editor):
            self._editors.lose(standby)
        if standby is None or standby.has_begun or (number := standby.fileno()) < 0:
            return
        is_withdrawn = standby.withdraw()
        self._poll.unregister(number)
        del self._speaking[number]
        if is_withdrawn:
            self._let_go(session)
            self._reaper.kill(session.pid)
            session.pid, session.standby = 0, None
        if session.connection.fileno() < 0:
            return
        if is_withdrawn and not session.signalled:
            self._fork(session)
        elif is_withdrawn or standby.outcome is not None:
            self._answer(session, signal.SIGKILL if standby.outcome is None else standby.outcome << 8)

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # none more; or another pre-fork server had it; or no descriptor is left, then one will be
            connection.setblocking(False)
            try:
                caller = Caller(connection, self._ours)
            except (Refused, OSError, ValueError, KeyError):
                packets.send(connection, b"N")
                self._closer.close(connection)
                continue
            if len(self._sessions) >= MAX_SESSIONS:
                caller.close()
                packets.send(connection, b"N")
                connection.close()
                continue
            session = self._sessions[connection.fileno()] = Session(connection, caller)
            self._poll.register(connection, select.POLLIN)
            # It sent its request with the connection.
            self._on_packet(session, select.POLLIN)
            if not self._serving:
                return

    def _on_packet(self, session: Session, event: int) -> None:
        """A packet of a client, or its end."""
        try:
            packet, ancillary, flags, _ = session.connection.recvmsg(
                LIMIT + 1, packets.ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            packet, ancillary, flags = b"", [], 0
        descriptors, credentials = packets.received(ancillary)
        if session.request is None:
            session.descriptors, descriptors = descriptors, []
        packets.close_all(descriptors)
        if not packet:
            self._on_disconnect(session)
        elif session.request is None:
            self._handle_request(session, packet, flags)
        elif session.pid:
            if len(packet) == 2 and packet[:1] == b"K" and packet[1] in _FORWARDED:
                session.signalled = True
                signal.pidfd_send_signal(session.pidfd, packet[1])
        elif packet == b"G" and session.caller.is_sender(credentials):
            self._begin(session)
        else:
            self._close(session)

    def _handle_request(self, session: Session, packet: bytes, flags: int) -> None:
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(session.descriptors) != DESCRIPTORS:
                raise Refused("a request that is not whole")
            request = prefork_request.decode(packet)
            if request.stamp != self._stamp:
                self._look_at_disk()
                raise Refused("a client of another installation")
            prefork_request.check(request, self._programs)
            checked = session.caller.check(request.program, self._ours, self._attributes, self._runtimes)
            session.attributes, entered = checked
            session.descriptors += entered
            if packets.is_waiting(session.connection):
                raise Refused("a client that does not wait")  # what it said need not be of the process that was checked
        except (Refused, OSError, ValueError, KeyError) as error:  # or it has gone, or /proc tells nothing about it
            packets.send(session.connection, b"N")
            self._close(session)
            if isinstance(error, Unattainable) and not self._has_warned:
                self._has_warned = True
                os.write(1, UNATTAINABLE)
        else:
            session.request, session.packet = request, packet
            if not packets.send(session.connection, b"R"):
                self._close(session)

    def _look_at_disk(self) -> None:
        """After an upgrade this process is of no use any more."""
        try:
            current = prefork_request.stamp_of(self._library)
        except OSError:
            return  # in the middle of one
        if current != self._stamp:
            self.leave(STALE)

    def _begin(self, session: Session) -> None:
        assert session.request is not None and session.attributes is not None
        program, asking = session.request.program, (session.caller.pid, session.caller.started)
        if program in CDI + RUNTIME and self._not_before < (now := time.monotonic()):
            self._not_before = now + START_S
        taken: StandbyWorker | None
        if program in RUNTIME:
            taken = self._editors.take(session)
        else:
            taken, self._standby = self._standby, None
            if taken and not taken.give(session.packet, session.descriptors, session.attributes, asking):
                taken, self._standby = None, taken  # its end will be heard of
        if taken is not None:
            self._given(session, taken)
        else:
            self._fork(session)

    def _given(self, session: Session, standby: StandbyWorker) -> None:
        # Its pidfd is polled already.
        session.pid, session.pidfd, session.standby = standby.pid, standby.pidfd, standby
        session.until = time.monotonic() + LATE_S
        self._working[session.pidfd] = session
        self._speaking[standby.fileno()] = session
        self._poll.register(standby.fileno(), select.POLLIN)

    def _fork(self, session: Session) -> None:
        """A worker for it alone."""
        assert session.request is not None and session.attributes is not None
        try:
            about = session.request, session.descriptors, session.attributes, self._attributes, self._programs
            session.pid = worker.fork(*about, session.caller.pid, session.caller.started)
            session.pidfd = os.pidfd_open(session.pid)
        except OSError:
            if session.pid:  # without a pidfd its end would go unnoticed: the client is told that it broke
                os.kill(session.pid, signal.SIGKILL)
                os.waitpid(session.pid, 0)
                session.pid = 0
            else:
                packets.send(session.connection, b"N")
            self._close(session)
            return
        session.close_descriptors()
        session.until = time.monotonic() + LATE_S
        self._working[session.pidfd] = session
        self._poll.register(session.pidfd, select.POLLIN)

    def _on_disconnect(self, session: Session) -> None:
        """The client has ended: so does its work, which is taken back."""
        if session.pid:
            signal.pidfd_send_signal(session.pidfd, signal.SIGKILL)
        self._close(session)

    def _on_worker_exit(self, session: Session) -> None:
        """The work has."""
        # Not waited for: the event may be of another descriptor that had the same number a moment ago.
        status = self._reaper.status(session.pid, session.pidfd)
        if status is None:
            return
        self._let_go(session)
        self._on_worker_message(session, is_last=True)
        standby, session.standby = session.standby, None
        if isinstance(standby, Editor):
            self._editors.lose(standby)
        if session.connection.fileno() < 0:
            return
        if standby is not None and not standby.has_begun and not session.signalled:
            session.pid = 0
            self._fork(session)
        else:
            self._answer(session, status)

    def _let_go(self, session: Session) -> None:
        """Of its process."""
        del self._working[session.pidfd]
        self._poll.unregister(session.pidfd)
        os.close(session.pidfd)

    def _on_worker_message(self, session: Session, *, is_last: bool = False) -> None:
        """The work is done, says its worker, which is about to end; or has ended (is_last)."""
        standby = session.standby
        if standby is None or standby.fileno() < 0:
            return
        number = standby.fileno()
        standby.hear()
        if is_last:
            standby.dismiss()  # a helper of its that still ends may hold the other side
        rests = isinstance(standby, Editor) and standby.outcome is not None and standby.fileno() >= 0
        if standby.fileno() < 0 or rests:
            self._poll.unregister(number)
            del self._speaking[number]
        if standby.outcome is not None and session.connection.fileno() >= 0:
            self._answer(session, standby.outcome << 8)
        if isinstance(standby, Editor) and rests:
            del self._working[session.pidfd]
            session.standby = None
            self._editors.give_back(standby)
            if not self._serving:
                self._editors.leave()

    def _answer(self, session: Session, status: int) -> None:
        """status: as wait(2) gives it."""
        assert session.request is not None
        if status == 0 and session.request.program in RUNTIME:
            self._runtimes.add(session.caller.pid, session.caller.started)
        session.close_descriptors()
        packets.send(session.connection, _STATUS.pack(b"S", status))
        self._close(session)

    def _close(self, session: Session) -> None:
        """Let go of the client."""
        session.close_descriptors()
        session.caller.close()
        number = session.connection.fileno()
        if number >= 0:
            self._poll.unregister(number)
            del self._sessions[number]
            session.connection.close()
