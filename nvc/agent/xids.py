"""The agent's part about Xid events: of which container a GPU's error is, written as an event and counted."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import deque

from nvc.agent.owners import Owners
from nvc.agent.part import Part
from nvc.base.errors import reason
from nvc.formats import xid
from nvc.share.store import start_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.agent import Agent
    from nvc.agent.tenant import Tenant
    from nvc.formats.xid import Xid

#: The longest record of /dev/kmsg (printk.h: PRINTK_MESSAGE_MAX).
_RECORD = 2048
#: Seconds of a look: a program can have its faults logged without end, and the owner of each is looked for. What is
#: left is read at the loop's next turn.
_TURN_S = 0.01
#: Seconds in which a process is not looked for again: one fault may be dozens of records.
_KNOWN_S = 1.0
#: Different numbers that are counted for a container.
_NUMBERS = 64


class Xids(Part):
    """From the agent's start on: what the kernel's log had before is of containers that are not known any more."""

    _agent: Agent
    _owners: Owners
    _file = -1

    def __init__(self) -> None:
        #: (tenant's number, 0: of none; UUID) -> Xid -> how often.
        self._counts: dict[tuple[int, str], dict[int, int]] = {}
        self._lines: deque[bytes] = deque()
        #: The process of the last event that named one: pid, start time, until when that holds; and its tenant.
        self._last: tuple[tuple[int, int, float], Tenant | None] = (0, 0, 0.0), None

    async def start(self, agent: Agent) -> None:
        self._agent = agent
        self._owners = Owners(agent.options.directory, agent.settings.first_uid)
        path = f"{agent.options.devices}/kmsg"
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            # At once: the process of most errors ends by them, and its container with it.
            asyncio.get_running_loop().add_reader(self._file, self.look)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            # A simulated machine has none; a pipe has no end to go to.
            if error.errno not in (errno.ENOENT, errno.ESPIPE):
                agent.journal.write("warning", message=f"{path}: {reason(error)}: Xid events are not seen")

    def look(self) -> None:
        until = time.monotonic() + _TURN_S
        while (self._lines or self._read()) and time.monotonic() < until:
            found = xid.parse(self._lines.popleft())
            if found is not None:
                self._tell(found)

    def gone(self, tenant: Tenant) -> None:
        self._owners.gone(tenant.number)
        self._last = (0, 0, 0.0), None
        for place in [place for place in self._counts if place[0] == tenant.number]:
            del self._counts[place]

    def xids(self, number: int, uuid: str) -> dict[int, int]:
        return self._counts.get((number, uuid), {})

    async def stop(self) -> None:
        if self._file >= 0:
            self._wait_no_more()
            os.close(self._file)
            self._file = -1

    def _wait_no_more(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)

    def _read(self) -> bool:
        """Whether there are lines. One record a read; its further lines begin with a space. A pipe may have several."""
        while self._file >= 0:
            try:
                data = os.read(self._file, _RECORD * 4)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten; the next one is there
                data = b""
            if not data:
                self._wait_no_more()  # a pipe that its writers have closed stays readable
                return False
            self._lines.extend(data.split(b"\n"))
            return True
        return False

    def _tell(self, found: Xid) -> None:
        uuid = next((gpu.uuid for gpu in self._agent.inventory if gpu.bus_id == found.bus_id), "")
        tenant = self._tenant(found.pid) if found.pid else None
        if not uuid and tenant is not None and len(tenant.limits.gpus) == 1:
            uuid = tenant.limits.gpus[0].uuid  # the machine's GPUs are not known
        counts = self._counts.setdefault((tenant.number if tenant is not None else 0, uuid), {})
        if found.number in counts or len(counts) < _NUMBERS:
            counts[found.number] = counts.get(found.number, 0) + 1
        self._agent.journal.write(
            "xid",
            gpu=uuid or found.bus_id,
            xid=found.number,
            container=tenant.name if tenant is not None else "",
            pid=found.pid,
            program=found.program,
            message=found.text,
        )

    def _tenant(self, pid: int) -> Tenant | None:
        """Whose process it is: by the kernel, and for one that has ended by what its supervisor counted last."""
        (last, started, until), tenant = self._last
        if pid != last or start_time(pid) != started or time.monotonic() > until:
            tenant = self._owner(pid)
            self._last = (pid, start_time(pid), time.monotonic() + _KNOWN_S), tenant
        return tenant

    def _owner(self, pid: int) -> Tenant | None:
        tenants, named = self._agent.tenants, dict[int, int]()
        for tenant in tenants:
            try:
                processes = self._agent.supervisors.processes(tenant.number)
            except OSError:
                continue
            named.update({one: tenant.number for one, _ in processes})
        number = self._owners.of([pid], tenants, named).get(pid, 0)
        return tenants.by_number(number) if number else None
