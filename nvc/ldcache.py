"""Update a container's loader cache: the host's ldconfig, in memory, in a sandbox (specification, section 7).

Nothing of the image is executed and nothing of the host can be reached: not the program's file (a sealed copy runs),
not the host's network, processes, devices or file system. What ldconfig prints goes to the debug log.
"""

from __future__ import annotations

import errno
import os
import select
import struct
import time

from nvc.errors import LdcacheError, reason
from nvc.ldcache_sandbox import Sandbox
from nvc.ldcache_snapshot import CACHE, Snapshot
from nvc.linux import const, process, procfd, rights, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.execute import Place
    from nvc.operations import UpdateLdcache

_CONFIGURATION = "/etc/ld.so.conf"
_OUTPUT_LIMIT = 256 << 10
# elf.h: e_machine by uname's machine; program header type of a dynamic loader's name.
_MACHINES = {"x86_64": 62, "aarch64": 183}
_PT_INTERP = 3
#: What the reference's users saw as bare numbers: resource limits, the filter, memory (section 7.3).
_SIGNALS = {
    9: "it was killed: out of memory, or more than 10 s of processor time",
    11: "it crashed, perhaps out of address space",
    25: "the cache would be larger than is allowed",
    31: "it made a system call that the sandbox does not allow",
}


def open_program(path: str) -> Fd:
    """The host's ldconfig, which a sealed copy is made of for each container (``nvc.linux.process.sealed_copy``).

    ``path.real`` is taken for a script (Ubuntu). Raises LdcacheError for what cannot run alone in a container.
    """
    try:
        file = Fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)
        if os.pread(file.fileno(), 2, 0) == b"#!" and os.path.exists(path + ".real"):
            file = Fd(os.open(path + ".real", os.O_RDONLY | os.O_CLOEXEC), path + ".real")
        _check_program(file)
        return file
    except OSError as error:
        raise LdcacheError(
            f"open failed: {path}: {reason(error)}", hint="--ldconfig=@PATH takes the path of the host's ldconfig"
        ) from error


def _check_program(file: Fd) -> None:
    """Refuse what would need a file of the container to run: a script's interpreter, a dynamic loader."""
    header = os.pread(file.fileno(), 64, 0)
    if header[:4] != b"\x7fELF" or len(header) < 64 or header[4] != 2 or header[5] != 1:
        raise LdcacheError(
            f"unsupported file format: {file.name}",
            hint="--ldconfig=@PATH takes the host's ldconfig program, not a script or a 32-bit program",
        )
    machine = struct.unpack_from("<H", header, 18)[0]
    if machine != _MACHINES.get(const.MACHINE, machine):
        raise LdcacheError(f"unsupported file format: {file.name}: not a program of this machine ({const.MACHINE})")
    offset = struct.unpack_from("<Q", header, 32)[0]
    size, count = struct.unpack_from("<HH", header, 54)
    for index in range(min(count, 64)):
        kind = os.pread(file.fileno(), 4, offset + index * size)
        if len(kind) == 4 and struct.unpack("<I", kind)[0] == _PT_INTERP:
            raise LdcacheError(
                f"unsupported file format: {file.name}: it is dynamically linked",
                hint="it would be run with libraries of the container; give a static ldconfig with --ldconfig=@PATH",
            )


class Launched:
    """ldconfig's process, on its way: it waits in its sandbox for the container's mounts to be complete."""

    def __init__(self, child: int, go: Fd, output: _Pipe, report: _Pipe) -> None:
        self._child = child
        self._go = go
        self._output = output
        self._report = report

    def go(self) -> None:
        """The container is as ldconfig shall see it: let it run. Raises OSError."""
        try:
            os.write(self._go.fileno(), b"g")
        except BrokenPipeError:
            pass  # it ended already, and ``finish`` says why

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
            if not isinstance(error, TimeoutError) or not _gone(child):
                _kill(child)
            raise
        return status, text, problem.decode("utf-8", "replace")

    def close(self) -> None:
        """End it if it did not run. May be called twice."""
        child, self._child = self._child, 0
        self._go.close()
        if child:
            _kill(child)
        self._output.close()
        self._report.close()


def launch(operation: UpdateLdcache, place: Place, program: Fd) -> Launched:
    """Start the process that will be ldconfig. Raises LdcacheError; the caller closes the result in any case."""
    rights.use("ldcache")
    try:
        return _launch(operation, place, program)
    except OSError as error:
        raise _not_started(operation, error) from error
    finally:
        rights.use("mount")


def begin(operation: UpdateLdcache, place: Place, launched: Launched) -> None:
    """Have it rebuild the cache; ``finish`` waits. Raises LdcacheError."""
    owner = place.uid, place.gid
    try:
        snapshot = Snapshot(place.root, operation.directories, owner)
    except OSError as error:
        raise LdcacheError(f"{place.root.path}{CACHE} cannot be read: {reason(error)}") from error
    place.undo.push(snapshot.restore)
    try:
        launched.go()
    except OSError as error:
        raise _not_started(operation, error) from error


def finish(operation: UpdateLdcache, place: Place, launched: Launched) -> bool:
    """Wait for what ``begin`` began. True; failures raise LdcacheError, and what it did is put back by ``undo``."""
    rights.use("ldcache")
    try:
        status, output, report = launched.finish(operation.limit)
    except TimeoutError as error:
        raise LdcacheError(
            f"process {operation.ldconfig} did not end within {operation.limit:g} s",
            hint="a file system of the container does not answer; allow more with --timeout SECONDS",
        ) from error
    except OSError as error:
        raise _not_started(operation, error) from error
    finally:
        rights.use("mount")
    lines = output.decode("utf-8", "replace").splitlines()
    for line in lines:
        place.log.warn(line)
    if report:
        raise LdcacheError(report, hint="the sandbox for ldconfig needs mount, pid, net, ipc and uts namespaces")
    if status != 0:
        raise _failure(operation.ldconfig, status, lines)
    return True


def _not_started(operation: UpdateLdcache, error: OSError) -> LdcacheError:
    return LdcacheError(f"process {operation.ldconfig} could not be started: {error}")


def _failure(path: str, status: int, lines: list[str]) -> LdcacheError:
    if status < 0:
        return LdcacheError(f"process {path} terminated with signal {-status}", hint=_SIGNALS.get(-status, ""))
    text = " ".join(lines)
    if "Read-only file system" in text:
        hint = "the container's file system is read-only: let the engine make it so after its hooks (root.readonly)"
    elif "No space left" in text:
        hint = "the container's file system is full"
    else:
        hint = lines[-1] if lines else ""
    return LdcacheError(f"process {path} failed with error code: {status}", hint=hint)


def _launch(operation: UpdateLdcache, place: Place, program: Fd) -> Launched:
    arguments = (operation.ldconfig, "-f", _CONFIGURATION, "-C", CACHE, *operation.directories)
    output, report, go = _Pipe(), _Pipe(), _Pipe()
    with output.write, report.write, go.read, Fd(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) as null:
        sandbox = Sandbox(
            root=place.root.fd,
            program=program,
            arguments=arguments,
            uid=place.uid,
            gid=place.gid,
            no_pivot=operation.no_pivot,
            output=output.write.fileno(),
            report=report.write.fileno(),
            null=null.fileno(),
            go=(go.read.fileno(), go.write.fileno()),
        )
        child = _fork_in_pid_namespace(sandbox)
    return Launched(child, go.write, output, report)


def _fork_in_pid_namespace(sandbox: Sandbox) -> int:
    own = Fd(os.open("ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=procfd.pin().fileno()), "/proc/self/ns/pid")
    with own:
        try:
            syscalls.setns(own, const.CLONE_NEWPID)
        except SyscallError as error:
            if error.errno != errno.EPERM:
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
    sandbox.leave_writer()
    syscalls.unshare(const.CLONE_NEWPID)
    child = process.fork(sandbox.run)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


def _gone(child: int) -> bool:
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
