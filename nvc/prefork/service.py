"""A container service that is forked before it is known what for, by an idle worker (``nvc.prefork.worker``).

It has done by then what does not depend on the request: its name, its rights, its imports, its page faults. What it
would have inherited of the request comes when it is taken: standard error, working directory and debug log as
descriptors, limits, OOM score and niceness from outside (``nvc.prefork.caller.apply``).
"""

from __future__ import annotations

import os
import time

from nvc.base.errors import reason
from nvc.base.log import Log
from nvc.base.verbs import HelperService, Verb
from nvc.cdi import worker as cdi_worker
from nvc.container import service
from nvc.container.ldcache import program
from nvc.container.verbs import CONTAINER
from nvc.linux import memory, namespaces, procfd, rights
from nvc.linux import process as linux_process
from nvc.linux.fd import Fd
from rpc import channel, process
from rpc.errors import ChannelError
from rpc.stop import Deferred

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.prefork.request import Hooks
    from rpc.client import Client

#: Seconds until the service has its process for ldconfig: a fork.
_SANDBOX_TIMEOUT_S = 2.0
#: A container's service, and what runs hooks of CDI specs: it is one or the other.
SERVICE = HelperService(
    CONTAINER.name,
    (verb for table in (CONTAINER, cdi_worker.HOOK) for verb in table.methods.values() if isinstance(verb, Verb)),
    crash_hint=CONTAINER.crash_hint,
    unwinds=True,
)


class StandbyService:
    """The service. From now on ``nvc.container.service.start`` takes it, once; ``close`` ends it otherwise."""

    def __init__(self, hooks: Hooks) -> None:
        """hooks: see ``Programs``. Raises OSError when there is no process or descriptor left."""
        self._end, self._other = channel.pair()
        self._log = Log()
        self._handlers = service.Handlers(self._log)
        self._hooks = hooks
        more = {"run": self._run_hooks}
        try:
            # The deadline is set when it is taken.
            self._client = service.fork(
                self._handlers, self._log, prepare=self._prepare, deadline=1.0, service=SERVICE, more=more
            )
        except BaseException:
            self._end.close()
            raise
        finally:
            self._other.close()
        process.private.add(self._end.fileno())
        self._taken = False
        #: The container's mount namespace, for hooks.
        self.inside: Fd | None = None
        #: The process that will be ldconfig, 0 when there is none.
        self.sandbox = 0
        service.in_advance = self.take
        cdi_worker.in_advance = self._take_for_hooks

    @property
    def pid(self) -> int:
        """Of the service."""
        return self._client.pid

    def descriptors(self) -> tuple[int, ...]:
        """What this process reaches it by."""
        inside = self.inside.fileno() if self.inside is not None else -1
        return tuple(number for number in (self._end.fileno(), inside, *self._client.descriptors()) if number >= 0)

    def _prepare(self) -> None:
        """In the service."""
        self._end.close()
        self._handlers.prepare()
        self._handlers.get_ready()
        self._other.send(b"%d" % program.in_advance())
        memory.prefault()
        received = self._other.receive()
        self._other.close()
        if received is None:
            os._exit(0)  # it was not needed
        stderr, directory, *log = received[1]
        os.dup2(stderr, 2)
        os.fchdir(directory)
        os.close(stderr)
        os.close(directory)
        for descriptor in log:
            self._log.take(descriptor)

    def _run_hooks(self, asked: cdi_worker.Asked, fds: list[int]) -> cdi_worker.Nothing:
        """In the service: the hooks of a CDI spec. It is in the container's mount namespace for them alone."""
        rights.set_name("nvc:[cdi-hook]")
        service.limit()
        linux_process.caller, linux_process.caller_started = asked.caller, asked.started
        number = os.open("ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=procfd.pin().fileno())
        with Fd(number, "ns/mnt") as own, Fd(fds.pop(), "ns/mnt") as theirs:
            try:
                enter(theirs)
                self._hooks(asked.words, asked.state.encode("latin-1"), self._log)
            finally:
                with Deferred():
                    _leave(own, self._log)
        return cdi_worker.Nothing()

    def take(self, deadline: float, log: Log, wait: bool) -> service.ContainerClient | None:
        """It, with the directory, standard error and log of this process; None when it has died, or was taken.

        wait: of no account, ``reap`` waits.
        """
        client = self._take(deadline, log)
        return service.ContainerClient(client, wait=False) if client is not None else None

    def _take_for_hooks(self, deadline: float, log: Log) -> tuple[Client, Fd] | None:
        client = self._take(deadline, log) if self.inside is not None else None
        return (client, self.inside) if client is not None and self.inside is not None else None

    def _take(self, deadline: float, log: Log) -> Client | None:
        if self._taken or not self._client.running:
            return None
        if linux_process.is_stopped(self.pid):
            os.kill(self.pid, 9)
            return None
        self._taken = True
        try:
            with Fd(os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), ".") as here:
                self._end.send(b"", [2, here.fileno(), *([log.fileno()] if log.enabled else [])])
        except OSError:
            self._client.close()
            return None
        finally:
            self._close_end()
        self._client.allow(deadline)
        return self._client

    def listen(self) -> None:
        """Wait until the service has told which process will be ldconfig: ``sandbox``. If it died, nothing is known."""
        try:
            received = self._end.receive(time.monotonic() + _SANDBOX_TIMEOUT_S)
        except (ChannelError, OSError):
            received = None
        self.sandbox = int(received[0]) if received is not None else 0

    def reap(self) -> None:
        """Wait for the end of the service, which has released everything when ``close`` returned."""
        self._client.reap()

    def close(self) -> None:
        """End it unless it was taken; then it is its caller's. Harmless when done twice."""
        if not self._taken:
            self._taken = True
            self._close_end()
            self._client.close()

    def _close_end(self) -> None:
        process.private.discard(self._end.fileno())
        self._end.close()


def enter(namespace: Fd) -> None:
    """Enter a container's mount namespace; its root has to be the machine's still. Raises OSError."""
    root = os.stat("/")
    namespaces.enter(namespace, "mnt")
    found = os.stat("/")
    if (found.st_dev, found.st_ino) != (root.st_dev, root.st_ino):
        raise PermissionError("the root of the caller's mount namespace is not the machine's")


def _leave(own: Fd, log: Log) -> None:
    """Be in our own mount namespace again, or end: nothing is answered from a container's."""
    try:
        namespaces.enter(own, "mnt")
    except OSError as error:
        log.error(f"the container's mount namespace cannot be left: {reason(error)}")
        os._exit(1)
