"""Start a helper, and end it. The one place that forks a service."""

from __future__ import annotations

import os
import select
import time

from rpc import channel, stop
from rpc.errors import Stop
from rpc.server import check_handlers, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    # ``signal`` is ``_signal`` behind three enums, which cost more than the fork.
    import signal as _signal
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from rpc.channel import Channel
    from rpc.client import Client
    from rpc.method import Service
    from rpc.server import Handler, Translate
else:
    import _signal

#: Seconds after SIGKILL until a helper that cannot die (it is in uninterruptible sleep) is left to init.
_KILL_TIMEOUT_S = 2.0
_STOPPED = 128 + _signal.SIGTERM
#: linux/proc_ns.h, PROC_PID_INIT_INO: the pid namespace that the kernel begins with.
_FIRST_PIDS = 0xEFFFFFFC

#: The clients of this process. A helper forked later must not hold the ends of earlier ones: they would never see
#: end of file.
_clients: list[Client] = []
#: Descriptors of this process that every helper closes. A number is removed when its descriptor is closed.
private: set[int] = set()


class Process:
    """A child process: waiting, signals, exit status.

    A pidfd is used, because a parent that inherited SIGCHLD ignored has no zombie to keep the number from being used
    again. Kernels before 5.3 have none (and a process may be out of descriptors): the number is polled.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.running = True
        self._status: int | None = None
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._pidfd = -1

    def fileno(self) -> int:
        """The pidfd, -1 when there is none."""
        return self._pidfd

    def wait(self, seconds: float) -> bool:
        """Reap the child if it ends within ``seconds``; True when it has."""
        until = time.monotonic() + seconds
        while self.running and not self._reap():
            left = until - time.monotonic()
            if left <= 0:
                return False
            if self._pidfd < 0:
                time.sleep(min(left, 0.002))
                continue
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            poll.poll(left * 1000)
        return True

    def _reap(self) -> bool:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            # SIGCHLD is ignored, or other code reaped it: its exit status is lost.
            pid, status = self.pid, None
        if pid == 0:
            return False
        self._status = status
        self.forget()
        return True

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(_signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, then reap; after _KILL_TIMEOUT_S the child is left to init."""
        if self.running:
            self._signal(_signal.SIGKILL)
            self.wait(_KILL_TIMEOUT_S)

    def _signal(self, number: int) -> None:
        try:
            if self._pidfd < 0:
                os.kill(self.pid, number)
            else:
                _signal.pidfd_send_signal(self._pidfd, number)
        except (ProcessLookupError, PermissionError):
            # Gone already; or of another user while this process is without CAP_KILL, then end of file must do.
            pass

    def forget(self) -> None:
        """Close the pidfd; the child is not waited for any more."""
        self.running = False
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def ending(self) -> str:
        """How the child ended, in words."""
        if self.running:
            return "the helper closed its end"
        if self._status is None:
            return "the helper died"
        code = os.waitstatus_to_exitcode(self._status)
        if code < 0:
            return f"the helper died (signal {-code}, {(_signal.strsignal(-code) or 'unknown').lower()})"
        return f"the helper ended (exit status {code})"


def start(
    service: Service,
    handlers: Mapping[str, Handler],
    *,
    prepare: Callable[[], None] | None = None,
    deadline: float = 10.0,
    translate: Translate | None = None,
    idle: Callable[[], bool | None] | None = None,
    on_shutdown: Callable[[int], None] | None = None,
) -> Client:
    """Fork a helper that offers ``service``, and return the way to call it.

    prepare: run in the helper before the first request (parent-death signal, name, rights). What it raises is the
        answer to every request.
    deadline: seconds a call may take unless it says otherwise.
    translate: see ``rpc.server.Translate``. idle: see ``rpc.server.serve``. on_shutdown: run in the helper after end of
        file, with the channel's number: releases what other processes could wait for, see ``Client.close``.
    Raises ValueError for handlers that are not the service's and for a deadline that is not positive, OSError when
    there is no process or descriptor left.
    """
    check_handlers(service, handlers)
    if not deadline > 0:
        raise ValueError(f"a deadline of {deadline} s")
    ours, theirs = channel.pair()
    # No signal handler of the parent may run in the helper.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        # fork answers 0 in the helper, which never comes back from _child.
        pid = os.fork() or _child(service, handlers, theirs, ours, prepare, translate, idle, on_shutdown)
    except BaseException:
        ours.close()
        raise
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        theirs.close()
    # After the fork: a helper has no use for it.
    from rpc.client import Client

    client = Client(service, ours, Process(pid), deadline=deadline)
    _clients[:] = [other for other in _clients if not other.closed]
    _clients.append(client)
    return client


def _child(
    service: Service,
    handlers: Mapping[str, Handler],
    end: Channel,
    other_end: Channel,
    prepare: Callable[[], None] | None,
    translate: Translate | None,
    idle: Callable[[], bool | None] | None,
    on_shutdown: Callable[[int], None] | None,
) -> NoReturn:
    """The helper from fork to exit. Never returns into the caller's code, whatever is raised."""
    status = 1
    try:
        other_end.close()
        for client in _clients:
            client.forget()
        for number in private:
            os.closerange(number, number + 1)
        stop.kill_after = None
        private.clear()  # the numbers are of other descriptors from now on, and this may start helpers itself
        _reset_signals()
        failure = None
        try:
            _leave_streams(end)
            if prepare is not None:
                prepare()
        except Exception as error:
            failure = error
        # Not before: nothing is to be undone yet, and an import swallows Stop and writes it to stderr.
        if service.unwinds:
            stop.install()
        serve(service, handlers, end, translate=translate, failure=failure, idle=idle)
        if on_shutdown is not None:
            on_shutdown(end.fileno())
        end.close()
        status = 0
    except Stop:
        status = _STOPPED
    except BaseException:
        # The caller has died, or the channel is not its own: the exit status is all that is left.
        status = 1
    finally:
        os._exit(status)


def _leave_streams(end: Channel) -> None:
    """The OCI state on stdin and the listing on stdout are the caller's. stderr stays, for messages of libraries."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for stream in (0, 1):
        if stream not in (end.fileno(), null):
            os.dup2(null, stream)
    if null > 1:
        os.close(null)


def _reset_signals() -> None:
    """Default actions, but for: SIGPIPE, SIGXFSZ (Python: errors instead), SIGINT (the caller's to handle), SIGTERM."""
    for number in (_signal.SIGHUP, _signal.SIGQUIT, _signal.SIGALRM, _signal.SIGCHLD, _signal.SIGUSR1, _signal.SIGUSR2):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
    _signal.set_wakeup_fd(-1)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def init_reaps() -> bool:
    """Whether process 1 reaps what others leave. In a container it can be a program that has no children.

    By what proc(5) says of its SIGCHLD: caught, blocked for sigwait(3), or ignored, so that the kernel reaps.
    """
    try:
        if os.stat("/proc/self/ns/pid").st_ino == _FIRST_PIDS:
            return True
        descriptor = os.open("/proc/1/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            lines = os.read(descriptor, 4096).splitlines()
        finally:
            os.close(descriptor)
    except OSError:
        return False
    masks = [line.split()[1] for line in lines if line.startswith((b"SigBlk:", b"SigIgn:", b"SigCgt:"))]
    return any(int(mask, 16) >> _signal.SIGCHLD - 1 & 1 for mask in masks)
