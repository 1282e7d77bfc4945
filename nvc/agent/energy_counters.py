"""The agent's side of the process that reads GPUs' counters of energy (``nvc.driver.energy``)."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import nvc
from nvc.base.errors import AgentError, reason
from rpc.codec import CodecError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from nvc.model import Host

#: Seconds for NVML to be initialised, for an answer, and for the process to end when it is killed.
_START_S, _ANSWER_S, _END_S = 30.0, 10.0, 1.0
_LINE = 64 << 10
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from nvc.driver.energy import main; main()"


class EnergyCounters:
    """One question about all GPUs at a time. The process is started by the first ``read``, and one after ``end``."""

    def __init__(self, host: Host, uid: int | None = None, gid: int | None = None) -> None:
        """uid, gid: of the process; None: the overflow id."""
        self._arguments = dumps({"host": host.as_data(), "uid": uid, "gid": gid, "parent": os.getpid()}).decode()
        self._process: Process | None = None

    async def read(self) -> dict[str, int]:
        """UUID -> millijoules since the driver was loaded, of the GPUs that count them. Raises AgentError."""
        seconds = _ANSWER_S
        if self._process is None:
            await self._start()
            seconds = _START_S
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"\n")
            async with asyncio.timeout(seconds):
                line = await process.stdout.readline()
            reply = loads(line, limit=_LINE) if line else {"error": f"the process ended ({process.returncode})"}
            if "error" in reply:
                raise AgentError(f"GPUs' energy is not read: {reply['error']}")
            return {uuid: counter for uuid, counter in reply.items() if type(counter) is int and counter >= 0}
        except TimeoutError:
            await self.end()
            raise AgentError(f"GPUs' energy is not read: no answer within {seconds:.0f} s") from None
        except (CodecError, ValueError, TypeError, OSError) as error:
            await self.end()
            raise AgentError(f"GPUs' energy is not read: {error}") from None
        except BaseException:
            await self.end()  # its answer to come would be that of another question
            raise

    async def end(self) -> None:
        """End the process; one that hangs in the driver is not waited for. A second time is nothing."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                pass

    async def _start(self) -> None:
        library = str(Path(nvc.__file__).resolve().parents[1])
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-c", _CODE, library, self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LINE,
            )
        except OSError as error:
            raise AgentError(f"GPUs' energy is not read: {reason(error)}") from error
