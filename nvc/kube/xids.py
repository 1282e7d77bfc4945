"""Whether GPUs are fit for use, from the kernel's log and the driver's directories.

An Xid is the driver's report of an error; which ones are an application's own fault is in NVIDIA's catalogue of Xids.
The kernel's log is read from its beginning, so that a process that starts anew knows what happened before; loading
the driver anew, and the report that a GPU needs no recovery (Xid 154), make a GPU fit again.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from nvc.base.errors import reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

KERNEL_LOG = "/dev/kmsg"
#: Errors of the application that ran, after which the GPU is as it was: NVIDIA's device plugin ignores these too.
APPLICATION_XIDS = frozenset((13, 31, 43, 45, 68, 109))
#: What the driver recommends for a GPU; action 0x0 is none.
_RECOVERY_XID = 154
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d+),?(.*)")
_RECOVERED = re.compile(r"to 0x0\b")
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
#: Of the kernel's records (Documentation/ABI/testing/dev-kmsg).
_RECORD_LIMIT = 8192


class XidLog:
    """Which GPUs, by PCI address as sysfs names them, have an error that is not an application's."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}

    def take(self, text: str) -> None:
        """A line of the kernel's log."""
        if _LOADED.search(text):
            self.problems.clear()
        match = _XID.search(text)
        if match is not None:
            address, number = _address(match[1]), int(match[2])
            if number == _RECOVERY_XID and _RECOVERED.search(match[3]):
                self.problems.pop(address, None)
            elif number not in APPLICATION_XIDS and number != _RECOVERY_XID:
                self.problems[address] = f"xid-{number}"


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
            for line in record.decode("utf-8", "replace").splitlines():
                self.xids.take(line)
        return dict(self.xids.problems)


def problems(found: Mapping[str, str], addresses: Mapping[str, str], present: Iterable[str]) -> dict[str, str]:
    """uuid of a GPU -> why it is not fit for use, a word. Pure.

    found: of ``KernelLog.look``. addresses: uuid -> PCI address. present: uuids of the GPUs that are there.
    """
    there = set(present)
    gone = {uuid: "gone" for uuid in addresses if uuid not in there}
    return gone | {uuid: found[address] for uuid, address in addresses.items() if address in found and uuid in there}


def _address(text: str) -> str:
    """0000:65:00 of the driver, with a function: 0000:65:00.0."""
    text = text.lower()
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}" if "." in rest else f"{domain[-4:]}:{rest}.0"
