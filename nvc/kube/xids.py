"""Whether GPUs are fit for use, from the kernel's log and the driver's directories.

An Xid is the driver's report of an error; which ones are an application's own fault is in NVIDIA's catalogue of Xids.
The kernel's log is read from its beginning, so that a process that starts anew knows what happened before; loading
the driver anew, and the report that a GPU needs no recovery (Xid 154), make a GPU fit again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.base.errors import reason
from nvc.formats import xid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

KERNEL_LOG = "/dev/kmsg"
#: Errors of the application that ran, after which the GPU is as it was: NVIDIA's device plugin ignores these too.
APPLICATION_XIDS = frozenset((13, 31, 43, 45, 68, 109))
#: What the driver recommends for a GPU; action 0x0 is none.
_RECOVERY_XID = 154
_RECOVERED = "to 0x0 "
_LOADED = "NVRM: loading NVIDIA UNIX"
#: Of the kernel's records (Documentation/ABI/testing/dev-kmsg).
_RECORD_LIMIT = 8192


class XidLog:
    """Which GPUs, by PCI address as sysfs names them, have an error that is not an application's."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def take(self, record: bytes) -> None:
        """A record of the kernel's log. What programs write there, or have the kernel quote, tells nothing."""
        if xid.kernel_text(record).startswith(_LOADED):
            self.problems.clear()
        found = xid.parse(record)
        if found is None:
            return
        address = found.bus_id[-len("0000:00:00.0") :]
        if found.number == _RECOVERY_XID and _RECOVERED in f"{found.text} ":
            self.problems.pop(address, None)
        elif found.number not in APPLICATION_XIDS and found.number != _RECOVERY_XID:
            self.problems[address] = f"xid-{found.number}"


class KernelLog:
    """The kernel's log from its beginning, read without waiting. A context manager. For one thread.

    problem: why it cannot be read, or "".
    """

    def __init__(self, path: str = KERNEL_LOG) -> None:
        self.xids = XidLog()
        self.problem = ""
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.problem = f"{path}: {reason(error)}: errors of GPUs (Xids) are not seen"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def look(self) -> dict[str, str]:
        """PCI address -> the problem, after every record that is there now."""
        while self._descriptor >= 0:
            try:
                record = os.read(self._descriptor, _RECORD_LIMIT)
            except BrokenPipeError:  # records were overwritten before they were read: the next read goes on after them
                continue
            except OSError:
                break
            if not record:
                break
            for line in record.split(b"\n"):
                self.xids.take(line)
        return dict(self.xids.problems)


def problems(found: Mapping[str, str], addresses: Mapping[str, str], present: Iterable[str]) -> dict[str, str]:
    """uuid of a GPU -> why it is not fit for use, a word. Pure.

    found: of ``KernelLog.look``. addresses: uuid -> PCI address. present: uuids of the GPUs that are there.
    """
    there = set(present)
    gone = {uuid: "gone" for uuid in addresses if uuid not in there}
    return gone | {uuid: found[address] for uuid, address in addresses.items() if address in found and uuid in there}
