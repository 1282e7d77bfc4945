"""The process that will be ldconfig: its start, its input, its end. What it does itself:
``nvc.container.ldcache.sandbox``.

It may be started before it is known which container it is for (``in_advance``): by a service that waits.
"""

from __future__ import annotations

import errno
import os
import select
import time

from nvc.container.ldcache.sandbox import RESTRICTED, Sandbox, packed
from nvc.linux import const, mounts, process, procfd, rights, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError
from rpc import channel
from rpc.errors import ChannelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rpc.channel import Channel

_OUTPUT_LIMIT = 256 << 10
#: Seconds for it to read its request: it does nothing else, and the packet fits its socket.
_SEND_TIMEOUT_S = 5.0
#: For one that was started in advance: native/syscall/standby.c.
_MAX_ARGUMENTS, _MAX_BYTES = 1024, 32 << 10


class Launched:
    """ldconfig's process, on its way: it waits in its sandbox for the container's mounts to be complete.

    program: (device, inode, size, mtime, ctime) of the file that it has copied.
    """

    def __init__(self, child: int, end: Channel, output: _Pipe, report: _Pipe, program: tuple[int, ...]) -> None:
        self.pid = child
        self._child = child
        self._end = end
        self._output = output
        self._report = report
        self._program = program

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        if self._child and _has_ended(self._child):
            self._child = 0
        return bool(self._child)

    def go(self, program: Fd, arguments: tuple[str, ...], owner: tuple[int, int], root: Fd | None) -> None:
        """The container is as ldconfig shall see it: let it run, as ``owner`` (uid, gid). Raises OSError.

        program: executed in place of what was copied, if it is another by now. root: the container's, where the process
        has none yet; only its mounts of this moment are seen.
        """
        is_known = identity(program) == self._program
        request = packed(owner, arguments)
        tree = copy = None
        if root is not None:
            tree = syscalls.open_tree(root, recursive=True)
            # What is covered in the sandbox must not be covered in the container: a clone is a peer of its original.
            syscalls.mount_setattr(tree, RESTRICTED, propagation=const.MS_PRIVATE)
        try:
            if not is_known:
                copy = process.sealed_copy(program, "ldconfig")
            carried = [one.fileno() for one in (tree, copy) if one is not None]
            self._end.send(request, carried, time.monotonic() + _SEND_TIMEOUT_S)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it ended already, and ``finish`` says why
        except ChannelError as error:
            raise TimeoutError(errno.ETIMEDOUT, str(error)) from error
        finally:
            for one in (tree, copy):
                if one is not None:
                    one.close()

    def finish(self, limit: float) -> tuple[int, bytes, str]:
        """Wait for it: (exit status or minus the signal, what it printed, which step before it failed or "").

        limit: seconds. Raises OSError, TimeoutError.
        """
        end = time.monotonic() + limit
        child = self._child
        try:
            text = self._output.drain(end)
            problem = self._report.drain(end)
            self._child = 0
            status = process.wait(child, max(0.0, end - time.monotonic()))
        except BaseException as error:
            # Process 1 of its pid namespace: nothing that it started outlives it. wait() has reaped it on a timeout.
            self._child = 0
            if not isinstance(error, TimeoutError) or not _has_ended(child):
                _kill(child)
            raise
        return status, text, _failed_step(problem)

    def close(self) -> None:
        """End it if it did not run. May be called twice."""
        child, self._child = self._child, 0
        self._end.close()
        if child:
            _kill(child)
        self._output.close()
        self._report.close()


_spare: Launched | None = None


def in_advance(program: Fd) -> int:
    """Start one for whatever container comes, if this kernel can; its process id, 0 when there is none.

    program: what will probably be asked for. ``take`` has it.
    """
    global _spare
    if _spare is None and mounts.modern():
        before = syscalls.capget()
        rights.use("ldcache")
        try:
            _spare = start(program, root=None, no_pivot=False, is_early=True)
        except OSError:
            pass  # no process, pipe or namespace is left: there may be one when it is needed
        finally:
            syscalls.capset(*before)
    return _spare.pid if _spare is not None else 0


def take(arguments: tuple[str, ...] = ()) -> Launched | None:
    """What was started in advance, once, if it still is there and can take them; the caller closes it."""
    global _spare
    spare, _spare = _spare, None
    is_long = len(arguments) > _MAX_ARGUMENTS or len(packed((0, 0), arguments)) > _MAX_BYTES
    if spare is not None and (is_long or not spare.running or process.is_stopped(spare.pid)):
        spare.close()
        return None
    return spare


def identity(program: Fd) -> tuple[int, ...]:
    """What tells a program's file, and one content of it, from another."""
    found = program.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def start(program: Fd, *, root: Fd | None, no_pivot: bool, is_early: bool = False) -> Launched:
    """Fork it. root: the container's, for a kernel without the calls that could give it one later. Raises OSError.

    is_early: long before it is needed, so that it lets go of everything that it has of this process at once.
    """
    output, report = _Pipe(), _Pipe()
    known = identity(program)
    ours, theirs = channel.pair()
    try:
        with output.write, report.write, Fd(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) as null:
            sandbox = Sandbox(
                end=theirs,
                other_end=ours,
                program=program,
                root=root,
                no_pivot=no_pivot,
                output=output.write.fileno(),
                report=report.write.fileno(),
                null=null.fileno(),
                is_early=is_early,
                proc=procfd.pin(),
            )
            child = _fork_in_pid_namespace(sandbox)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Launched(child, ours, output, report, known)


def _fork_in_pid_namespace(sandbox: Sandbox) -> int:
    own = Fd(os.open("ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=procfd.pin().fileno()), "/proc/self/ns/pid")
    with own:
        try:
            syscalls.setns(own, const.CLONE_NEWPID)
        except SyscallError as error:
            if error.errno != errno.EPERM or sandbox.is_early:
                raise
            # Root of a user namespace in a pid namespace of others: there is no way back, so a child goes.
            return process.fork(lambda: _between(sandbox))
        syscalls.unshare(const.CLONE_NEWPID)
        try:
            return process.fork(sandbox.run)
        finally:
            # Later children are to be ours again; with process 1 gone none could even be forked.
            syscalls.setns(own, const.CLONE_NEWPID)


def _between(sandbox: Sandbox) -> int:
    """Stand between the service and process 1 of the new namespace, and end as that ended."""
    rights.parent_death_signal(os.getppid())
    sandbox.leave_other_end()
    syscalls.unshare(const.CLONE_NEWPID)
    child = process.fork(sandbox.run)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


def _failed_step(problem: bytes) -> str:
    """The line that says what went wrong; native/syscall/standby.c puts a null and an error number behind it."""
    text, mark, number = problem.partition(b"\0")
    reason = f": {os.strerror(number[0]).lower()}" if mark and number else ""
    return text.decode("utf-8", "replace") + reason


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _kill(child: int) -> None:
    try:
        os.kill(child, 9)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


class _Pipe:
    """A pipe whose write end a child gets; the read end is drained with a deadline and a limit."""

    def __init__(self) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        self.read = Fd(read, "pipe")
        self.write = Fd(write, "pipe")

    def close(self) -> None:
        self.read.close()
        self.write.close()

    def drain(self, until: float) -> bytes:
        """Everything up to end of file, of which _OUTPUT_LIMIT bytes are kept. Raises TimeoutError."""
        data = b""
        poll = select.poll()
        poll.register(self.read.fileno(), select.POLLIN)
        with self.read:
            while True:
                left = until - time.monotonic()
                if left <= 0 or not poll.poll(left * 1000):
                    raise TimeoutError(errno.ETIMEDOUT, "no end of output")
                part = os.read(self.read.fileno(), 1 << 16)
                if not part:
                    return data
                data += part[: _OUTPUT_LIMIT - len(data)]
