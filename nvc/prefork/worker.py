"""The process that does one request: a fork of the pre-fork server, made like the caller, then the program's ``run``.

One is forked in advance and waits (``StandbyWorker``): what does not depend on the request it has done by then. While
that one is at work others are forked when a request comes (``fork``).
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import sys

from nvc.linux import memory, namespaces, procfd, rights
from nvc.linux import process as linux_process
from nvc.linux.fd import Fd
from nvc.linux.process import close_all_but
from nvc.prefork import caller, service
from nvc.prefork import request as prefork_request
from nvc.prefork.caller import ProcessAttributes
from nvc.prefork.request import CDI, CONFIGURE, DESCRIPTORS, KNOWN, LIMIT, RUNTIME
from rpc import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from nvc.prefork.request import Programs, Request
    from nvc.prefork.service import StandbyService

#: What requests import beside what hook/warm.py does, found by asking (tests/system/test_warm.py holds that nothing is
#: missing).
MODULES = """
encodings.ascii nvc.inject.api nvc.container.apply nvc.cli.compat.configure nvc.cli.compat.dryrun nvc.container.lookup
nvc.cdi.hooks nvc.cdi.worker nvc.container.execute nvc.container.ldcache.update nvc.container.ldcache.process
nvc.container.ldcache.sandbox nvc.request.requirements nvc.driver.inventory nvc.driver.runtime nvc.driver.served
nvc.driver.service nvc.inject.share nvc.driver.kmods nvc.linux.cgroup nvc.linux.devices_v1 nvc.linux.devices_v2
nvc.linux.mounts nvc.sim nvc.inject.session nvc.inject.planned nvc.container.plan rpc.client nvc.container.share_files
nvc.guard.filter nvc.guard.profile nvc.guard.requests nvc.share.fits nvc.share.joined nvc.share.protocol
""".split()  # noqa: SIM905 -- reads better
_DEFAULT = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
#: A standby worker's word that it has the request.
TAKEN = b"T"
#: Its word that the request is done: the exit code.
OUTCOME = struct.Struct("=i")
#: A caller's process id and start time, before its packet.
ABOUT = struct.Struct("=QQ")
_ANCILLARY = socket.CMSG_SPACE((DESCRIPTORS + 1) * 4)


class StandbyWorker:
    """An idle worker. ``pidfd`` tells its end; its user takes ``pid`` and ``pidfd`` over.

    has_begun: it said that it took the request; if it never did, it was ended while idle, and nothing was done.
    outcome: its exit code, sent when it has let go of everything of the caller's: its memory goes while no client
    waits. lasts: whether it waits for another request then.
    """

    def __init__(
        self, ours: ProcessAttributes, programs: Programs, wait: Callable[[socket.socket], int] | None = None
    ) -> None:
        """Fork it. wait: its life, with its end of the connection. Raises OSError."""
        self._end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = 0
        self.has_begun = False
        self.outcome: int | None = None
        self.lasts = False
        try:
            with other:
                self.pid = start(lambda: wait(other) if wait is not None else _wait(other, ours, programs))
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            self._end.close()
            if self.pid:
                os.waitpid(self.pid, 0)
            raise

    def give(
        self, packet: bytes, descriptors: Sequence[int], attributes: ProcessAttributes, asking: tuple[int, int] = (0, 0)
    ) -> bool:
        """Have it do the request of a client's packet; False when it cannot, then it goes.

        descriptors: the caller's, to be kept until it has ended, see ``has_begun``. asking: its process and start time.
        """
        return self.send(ABOUT.pack(*asking) + attributes.packed() + packet, descriptors)

    def send(self, data: bytes, descriptors: Sequence[int]) -> bool:
        """False when it cannot be, then it goes."""
        if linux_process.is_stopped(self.pid):
            self._end.close()
            os.kill(self.pid, signal.SIGKILL)
            return False
        carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._end.sendmsg([data], carried, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            self._end.close()
            return False
        return True

    def fileno(self) -> int:
        """Readable when it has something to say, -1 once it has said all."""
        return self._end.fileno()

    def hear(self) -> None:
        """Take what it has said."""
        while self._end.fileno() >= 0:
            try:
                said = self._end.recv(16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if said == TAKEN:
                self.has_begun = True
                continue
            if len(said) == OUTCOME.size:
                self.outcome = OUTCOME.unpack(said)[0]
                if self.lasts:
                    return
            self._end.close()

    def withdraw(self) -> bool:
        """Take its request back, unless it has begun: then only its exit status tells the outcome."""
        self._end.shutdown(socket.SHUT_RD)  # what it says from now on fails
        self.hear()
        return not self.has_begun

    def dismiss(self) -> None:
        """It ends by itself, at once."""
        self._end.close()


def fork(
    request: Request,
    descriptors: Sequence[int],
    attributes: ProcessAttributes,
    ours: ProcessAttributes,
    programs: Programs,
    caller: int,
    started: int,
) -> int:
    """Start one for a request of the process ``caller``, which started then; its process id.

    descriptors: the caller's streams and directory, and for CDI the mount namespace; still the caller's. Raises
    OSError when there is no process left.
    """

    def work() -> int:
        if request.program in KNOWN:
            linux_process.caller, linux_process.caller_started = caller, started
        return _serve(request, descriptors, attributes, ours, programs, None)

    return start(work)


def start(work: Callable[[], int]) -> int:
    """Fork a process that does the work and ends with this one; its id. Raises OSError."""
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _live(work, parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _live(work: Callable[[], int], parent: int) -> NoReturn:
    """Never returns into the caller's code, whatever is raised."""
    status = 1
    try:
        # Helpers die with this process and undo; this one with the pre-fork server that its client speaks to.
        rights.parent_death_signal(parent)
        status = work()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)  # as the interpreter does at its end
    finally:
        os._exit(status)


def begin_to_wait(name: str, end: socket.socket) -> None:
    """Be a process that waits for requests from ``end``."""
    rights.set_name(name)
    close_rest(end.fileno())
    # Out of the way of a terminal's signals; they would be kept, and end the work of a later caller.
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    # What speaks to the pre-fork server: not for a helper that runs the driver's code.
    process.private.add(end.fileno())


def tell(end: socket.socket, data: bytes) -> bool:
    """Whether the pre-fork server takes it; otherwise it has gone, or withdrawn its request."""
    try:
        end.send(data, socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def received(end: socket.socket) -> tuple[bytes, array.array[int]]:
    """A packet of the pre-fork server, b"" at its end, and the descriptors with it: none where not all came."""
    packet, ancillary, flags, _ = end.recvmsg(LIMIT + 4096, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for _, _, data in ancillary:
        found.frombytes(data)
    return packet, array.array("i") if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) else found


def _wait(end: socket.socket, ours: ProcessAttributes, programs: Programs) -> int:
    """The life of a standby worker: everything that needs no request, then the request."""
    begin_to_wait("nvc:[idle]", end)
    standby = service.StandbyService(programs.hooks)
    try:
        memory.prefault()
        standby.listen()
        packet, found = received(end)
        if not packet:
            return 0  # nothing came: the pre-fork server goes
        if not tell(end, TAKEN):
            return 0
        attributes, rest = ProcessAttributes.unpack(packet[ABOUT.size :])
        request = prefork_request.decode(rest)
        if len(found) != DESCRIPTORS + (request.program in CDI):
            return 1
        if request.program in KNOWN:
            linux_process.caller, linux_process.caller_started = ABOUT.unpack_from(packet)
        own = Fd(os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), "ns/mnt")
        programs.keep((end.fileno(), own.fileno()))
        status = _serve(request, found, attributes, ours, programs, standby)
    finally:
        standby.close()
    # The caller may unmount its directory, or wait for the end of our output, once it has the answer.
    if request.program in CDI:
        namespaces.enter(own, "mnt")
    os.chdir("/")
    os.closerange(0, 3)
    close_rest(end.fileno(), *standby.descriptors())
    tell(end, OUTCOME.pack(status))
    standby.reap()
    return status


def _serve(
    request: Request,
    descriptors: Sequence[int],
    attributes: ProcessAttributes,
    ours: ProcessAttributes,
    programs: Programs,
    standby: StandbyService | None,
) -> int:
    """Do it; the exit code."""
    _become(request, descriptors, attributes, ours, standby)
    if standby is not None:
        programs.keep(standby.descriptors())
    for names, run in ((CDI, programs.cdi), (RUNTIME, programs.runtime), (CONFIGURE, programs.configure)):
        if request.program in names:
            return run()
    return programs.hook()


def _become(
    request: Request,
    descriptors: Sequence[int],
    attributes: ProcessAttributes,
    ours: ProcessAttributes,
    standby: StandbyService | None,
) -> None:
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    if request.program in CDI:
        inside = Fd(os.dup(descriptors[DESCRIPTORS]), "ns/mnt")
        service.enter(inside)
        if standby is not None:
            standby.inside = inside  # by path another could be found: /proc is the container's from here on
    else:
        os.fchdir(descriptors[3])
    if standby is None:
        close_rest()
    else:
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            _lend(attributes, ours, standby)
        except OSError:
            standby.close()  # it has died; there will be another
    caller.apply(attributes, ours)
    be_called(request)
    reset_signals()


def be_called(request: Request) -> None:
    """Have the caller's umask, environment, command line and name."""
    os.umask(request.mask)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [request.program, *request.words]
    rights.set_name(request.program)


def reset_signals() -> None:
    """As a program has them at its start."""
    signal.set_wakeup_fd(-1)
    for one in _DEFAULT:
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _lend(attributes: ProcessAttributes, ours: ProcessAttributes, standby: StandbyService) -> None:
    """Give the service, and the process that will be ldconfig, the caller's attributes. Raises OSError."""
    if attributes == ours:
        return
    caller.apply(attributes, ours, standby.pid)
    if standby.sandbox:
        try:
            caller.apply(attributes, ours, standby.sandbox)
        except ProcessLookupError:
            pass  # the service starts another, which is as the service is


def close_rest(*keep: int) -> None:
    """The streams of other callers, the socket, the processes; but our own streams and the modules' file stay."""
    finders = (finder.fileno() for finder in sys.meta_path if hasattr(finder, "fileno"))
    procfd.unpin()
    close_all_but(0, 1, 2, *keep, *finders)
