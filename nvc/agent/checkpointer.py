"""The process that makes CUDA's checkpoint calls for the agent, and the agent's side of it.

A process of its own: libcuda is not to be loaded into the agent, and reads what the suspended process says. It lives
for one suspend or resume, with CAP_SYS_PTRACE alone: libcuda finds its channel in /proc/PID/fd, which other users'
processes do not show otherwise. A line of JSON each way: {"verb": "lock", "pid": 12, "timeout_ms": 10000} and
{"status": 600, "text": "cuCheckpointProcessLock: CUDA_ERROR_NOT_READY"}.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path

import nvc
from nvc.base.errors import AgentError, reason
from nvc.bindings.checkpoint import CheckpointError, CheckpointLibrary
from nvc.linux import rights
from nvc.linux.rights import CAP_SYS_PTRACE
from rpc.codec import CodecError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable
    from typing import Any, Self

#: Seconds for the library to be loaded and to initialise the driver.
_START_S = 30.0
#: Seconds beyond a lock's own time; for a checkpoint or a restore, whatever its size, and bytes that are moved in
#: one of them at least.
_LOCK_MORE_S, _MOVE_S, _MOVE_BYTES = 5.0, 60.0, 50 << 20
_LINE = 4096
_STATUS_SYSTEM = -1
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from nvc.agent.checkpointer import main; main()"


class Refused(Exception):
    """The library refused. value: CUresult."""

    def __init__(self, text: str, value: int) -> None:
        super().__init__(text)
        self.value = value


class Checkpointer:
    """An async context manager. Each call raises Refused; AgentError when the process died or is late."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        library = str(Path(nvc.__file__).resolve().parents[1])
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-c",
                _CODE,
                library,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LINE,
            )
        except OSError as error:
            raise AgentError(f"the process for checkpoints does not start: {reason(error)}") from error
        try:
            await self._answer(_START_S)
        except Refused as error:
            await self.__aexit__()
            raise AgentError(f"CUDA's checkpoint functions: {error}", hint="they need driver 570 or newer") from None
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def state(self, pid: int) -> int:
        """RUNNING, LOCKED, CHECKPOINTED or FAILED of nvc.bindings.checkpoint."""
        return int((await self._ask(_LOCK_MORE_S, verb="state", pid=pid))["state"])

    async def lock(self, pid: int, seconds: float) -> None:
        await self._ask(seconds + _LOCK_MORE_S, verb="lock", pid=pid, timeout_ms=int(seconds * 1000))

    async def checkpoint(self, pid: int, size: int) -> None:
        """size: bytes that are moved, about."""
        await self._ask(_MOVE_S + size / _MOVE_BYTES, verb="checkpoint", pid=pid)

    async def restore(self, pid: int, size: int) -> None:
        await self._ask(_MOVE_S + size / _MOVE_BYTES, verb="restore", pid=pid)

    async def unlock(self, pid: int) -> None:
        await self._ask(_LOCK_MORE_S, verb="unlock", pid=pid)

    async def _ask(self, seconds: float, **request: object) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise AgentError("the process for checkpoints has ended")
        try:
            process.stdin.write(dumps(request) + b"\n")
            await process.stdin.drain()
        except OSError as error:
            raise AgentError(f"the process for checkpoints has ended: {reason(error)}") from None
        return await self._answer(seconds)

    async def _answer(self, seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await process.stdout.readline()
            reply = loads(line, limit=_LINE) if line else None
        except TimeoutError:
            await self.__aexit__()  # its answer to come would be that of another question
            raise AgentError(f"a checkpoint call did not return within {seconds:.0f} s") from None
        except (CodecError, ValueError) as error:
            raise AgentError(f"the process for checkpoints: {error}") from None
        if not isinstance(reply, dict):
            raise AgentError(f"the process for checkpoints has ended (status {await process.wait()})")
        if reply.get("status"):
            raise Refused(str(reply.get("text")), int(reply["status"]))
        return reply


# In the process.


def main() -> None:
    """Answer lines until the agent is gone."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the library prints is for the log
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rights.keep_only(frozenset((CAP_SYS_PTRACE,)))
    library: CheckpointLibrary | None = None

    def load(_: dict[str, Any]) -> dict[str, object]:
        nonlocal library
        library = CheckpointLibrary()
        return {}

    def act(request: dict[str, Any]) -> dict[str, object]:
        assert library is not None
        pid = request["pid"]
        if request["verb"] == "state":
            return {"state": library.state(pid)}
        if request["verb"] == "lock":
            library.lock(pid, request["timeout_ms"])
        else:
            {"checkpoint": library.checkpoint, "restore": library.restore, "unlock": library.unlock}[request["verb"]](
                pid
            )
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
