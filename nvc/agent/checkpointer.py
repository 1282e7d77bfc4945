"""The processes that make CUDA's checkpoint calls for the agent, and the agent's side of them.

libcuda is not to be loaded into the agent: it opens what the suspended process names (descriptors of /proc/PID/fd, by
the names of that process's threads) and reads what it writes. So these calls are made by a process with the user and
groups of the suspended one, in its device cgroup, with CAP_SYS_PTRACE alone: what it opens, the container could have
opened, a file that is not its own as little as a device node that its cgroup denies. It lives for one suspend or
resume. A line of JSON each way: {"verb": "lock", "pid": 12, "timeout_ms": 10000} and
{"status": 600, "text": "cuCheckpointProcessLock: CUDA_ERROR_NOT_READY"}.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import sys
import time
from pathlib import Path

import nvc
from nvc.base.errors import AgentError, reason
from nvc.bindings.checkpoint import CheckpointError, CheckpointLibrary
from nvc.linux import cgroup, const, rights, syscalls
from nvc.linux.rights import CAP_SYS_PTRACE
from rpc.codec import CodecError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable
    from typing import Any, Self

    #: uid, gid, other groups with commas, directory of the device cgroup.
    Identity = tuple[int, int, str, str]

#: Seconds for the library to be loaded and to initialise the driver.
_START_S = 30.0
#: Seconds beyond a lock's own time; for a checkpoint or a restore, whatever its size, and bytes that are moved in
#: one of them at least.
_LOCK_MORE_S, _MOVE_S, _MOVE_BYTES = 5.0, 60.0, 50 << 20
#: Between two looks whether the calls of an agent that ended have ended.
_LOOK_S = 0.2
#: Processes at a time: a container's processes may have as many users, groups and cgroups as it likes, and each of
#: ours has Python and libcuda in memory that no container is charged for.
_HELPERS = 4
_LINE = 4096
_STATUS_SYSTEM = -1
_CGROUP = "the agent must see the cgroups of containers at /sys/fs/cgroup"
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from nvc.agent.checkpointer import main; main()"


class Refused(Exception):
    """The library refused. value: CUresult."""

    def __init__(self, text: str, value: int) -> None:
        super().__init__(text)
        self.value = value


class _Helper:
    """A process with an identity. Each call raises Refused; AgentError when it died or is late."""

    def __init__(self, identity: Identity, lock: int) -> None:
        """lock: a descriptor that the process keeps open as long as it lives."""
        self._identity = identity
        self._lock = lock
        self._is_asked = False
        self._process: Process | None = None

    async def start(self) -> None:
        """Raises AgentError."""
        *identity, directory = self._identity
        library = str(Path(nvc.__file__).resolve().parents[1])
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-c",
                _CODE,
                library,
                *map(str, identity),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE,
                pass_fds=(self._lock,),
            )
        except OSError as error:
            raise AgentError(f"the process for checkpoints does not start: {reason(error)}") from error
        try:
            await self._answer(_START_S)
            # When it has its memory and its threads: they are not the container's.
            with open(f"{directory}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(self._process.pid))
        except OSError as error:
            await self.end()
            raise AgentError(f"{directory}/cgroup.procs: {reason(error)}", hint=_CGROUP) from error
        except Refused as error:
            await self.end()
            raise AgentError(f"CUDA's checkpoint functions: {error}", hint="they need driver 570") from None
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """A second time is nothing."""
        process, self._process = self._process, None
        if process is not None:
            if self._is_asked and process.stdin is not None:
                # The agent ends. The call would go on in the suspended process without this one, and the next agent
                # has to know: it ends by itself then.
                process.stdin.close()
                return
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def ask(self, seconds: float, **request: object) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise AgentError("the process for checkpoints has ended")
        try:
            process.stdin.write(dumps(request) + b"\n")
            await process.stdin.drain()
        except OSError as error:
            raise AgentError(f"the process for checkpoints has ended: {reason(error)}") from None
        try:
            return await self._answer(seconds)
        except asyncio.CancelledError:
            self._is_asked = True
            raise

    async def _answer(self, seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await process.stdout.readline()
            reply = loads(line, limit=_LINE) if line else None
        except TimeoutError:
            await self.end()  # its answer to come would be that of another question
            raise AgentError(f"a checkpoint call did not return within {seconds:.0f} s") from None
        except (CodecError, ValueError) as error:
            raise AgentError(f"the process for checkpoints: {error}") from None
        if not isinstance(reply, dict):
            await self.end()  # also where it goes on: what a suspended process wrote may have taken it over
            raise AgentError(f"the process for checkpoints has ended (status {process.returncode})")
        if reply.get("status"):
            raise Refused(str(reply.get("text")), int(reply["status"]))
        return reply


class Checkpointers:
    """An async context manager: one process for each user whose processes are named, the last few of them.

    Each call raises Refused; AgentError when its process died, is late, or cannot be.
    """

    def __init__(self, path: str) -> None:
        """path: of a file that the processes hold a lock of."""
        self._path = path
        self._lock = -1
        self._helpers: dict[Identity, _Helper] = {}

    async def __aenter__(self) -> Self:
        try:
            self._lock = _open(self._path)
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise AgentError(f"{self._path}: {reason(error)}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for helper in self._helpers.values():
                await helper.end()
        finally:
            os.close(self._lock)

    async def state(self, pid: int) -> int:
        """RUNNING, LOCKED, CHECKPOINTED or FAILED of nvc.bindings.checkpoint."""
        return int((await self._ask(_LOCK_MORE_S, verb="state", pid=pid))["state"])

    async def restore_thread(self, pid: int) -> int:
        """The thread of CUDA's in the process that does the work."""
        return int((await self._ask(_LOCK_MORE_S, verb="thread", pid=pid))["thread"])

    async def lock(self, pid: int, seconds: float) -> None:
        await self._ask(seconds + _LOCK_MORE_S, verb="lock", pid=pid, timeout_ms=int(seconds * 1000))

    async def checkpoint(self, pid: int, size: int) -> None:
        """size: bytes that are moved, about."""
        await self._ask(_MOVE_S + size / _MOVE_BYTES, verb="checkpoint", pid=pid)

    async def restore(self, pid: int, size: int) -> None:
        await self._ask(_MOVE_S + size / _MOVE_BYTES, verb="restore", pid=pid)

    async def unlock(self, pid: int) -> None:
        await self._ask(_LOCK_MORE_S, verb="unlock", pid=pid)

    async def _ask(self, seconds: float, *, verb: str, pid: int, **more: int) -> dict[str, Any]:
        try:
            identity = _identity(pid)
        except OSError as error:
            raise Refused(f"process {pid}: {reason(error)}", _STATUS_SYSTEM) from None
        except ValueError as error:
            raise AgentError(f"process {pid}: {error}", hint=_CGROUP) from None
        if identity not in self._helpers:
            while len(self._helpers) >= _HELPERS:
                await self._helpers.pop(next(iter(self._helpers))).end()
            helper = _Helper(identity, self._lock)
            await helper.start()
            self._helpers[identity] = helper
        return await self._helpers[identity].ask(seconds, verb=verb, pid=pid, **more)


async def ended(path: str, seconds: float) -> None:
    """Until the processes of an agent before this one have made their last call. Raises AgentError.

    Such a call goes on in the suspended process: a lock that had waited would come after it was made to run again.
    """
    until = time.monotonic() + seconds
    try:
        lock = _open(path)
    except OSError as error:
        raise AgentError(f"{path}: {reason(error)}") from error
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise AgentError(f"a checkpoint call did not return within {seconds:.0f} s") from None
            await asyncio.sleep(_LOOK_S)
    finally:
        os.close(lock)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _identity(pid: int) -> Identity:
    """Raises OSError, ValueError for a process without a cgroup of devices."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        fields = dict(line.partition(":")[::2] for line in file)
    _, directory = cgroup.find(proc_root="/", pid=pid, mount_pid=os.getpid())
    # Those by which files are opened.
    return int(fields["Uid"].split()[3]), int(fields["Gid"].split()[3]), ",".join(fields["Groups"].split()), directory


# In the process.


def main() -> None:
    """Answer lines until the agent is gone. argv: where nvc is, user, group, other groups."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the library prints is for the log
    uid, gid, groups = int(sys.argv[2]), int(sys.argv[3]), [int(word) for word in sys.argv[4].split(",") if word]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Capabilities stay with the change of user.
    syscalls.prctl(const.PR_SET_SECUREBITS, const.SECBIT_NO_SETUID_FIXUP)
    os.setgroups(groups)
    rights.become(uid, gid, groups=False)
    rights.keep_only(frozenset((CAP_SYS_PTRACE,)))
    library: CheckpointLibrary | None = None

    def load(_: dict[str, Any]) -> dict[str, object]:
        nonlocal library
        library = CheckpointLibrary()
        return {}

    def act(request: dict[str, Any]) -> dict[str, object]:
        assert library is not None
        pid, verb = request["pid"], request["verb"]
        if verb == "state":
            return {"state": library.state(pid)}
        if verb == "thread":
            return {"thread": library.restore_thread(pid)}
        if verb == "lock":
            library.lock(pid, request["timeout_ms"])
            return {}
        calls = {"checkpoint": library.checkpoint, "restore": library.restore, "unlock": library.unlock}
        calls[verb](pid)
        return {}

    os.write(answers, _reply(load, {}))
    if library is None:
        return
    for line in sys.stdin.buffer:
        os.write(answers, _reply(act, loads(line, limit=_LINE)))


def _reply(act: Callable[[dict[str, Any]], dict[str, object]], request: dict[str, Any]) -> bytes:
    try:
        answer = {"status": 0, **act(request)}
    except CheckpointError as error:
        answer = {"status": error.value, "text": str(error)}
    except OSError as error:
        answer = {"status": _STATUS_SYSTEM, "text": str(error)}
    return dumps(answer) + b"\n"
