"""Xid events in the kernel's log: what NVIDIA's driver says of an error of a GPU. Pure.

A record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg) is "PRIORITY,SEQUENCE,TIME,FLAGS;TEXT". The driver's text:

    NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ...

Only the kernel's own records count: those that programs write to /dev/kmsg have another facility. The name is a
program's own word.
"""

from __future__ import annotations

import re

from nvc.base.record import Record

#: A facility is what is above these bits of a priority (linux/kern_levels.h, syslog.h); 0: the kernel.
_LEVEL_BITS = 3
_RECORD = re.compile(rb"(\d{1,5}),\d+,\d+,[^;\n]*;([^\n]*)")
_XID = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.0)?(?: GPU-I:\d{1,2})?\): "
    r"(\d{1,4})(?:, (.*))?$"
)
_PROCESS = re.compile(r"pid='?(\d{1,10}|<unknown>)'?(?:, name='?(.{0,16}?)'?(?:, |$))?")
#: Characters of a text that are kept.
_TEXT = 200


class Xid(Record):
    """bus_id: as ``nvc.model.Gpu`` has it. pid: of this host, 0: none is said. program: its name. text: the rest."""

    bus_id: str
    number: int
    pid: int = 0
    program: str = ""
    text: str = ""


def kernel_text(record: bytes) -> str:
    """The text of a record of the kernel's own; "" for another one."""
    head = _RECORD.match(record)
    return head[2].decode("utf-8", "replace") if head is not None and not int(head[1]) >> _LEVEL_BITS else ""


def parse(record: bytes) -> Xid | None:
    """What a record of /dev/kmsg tells; None: it is of something else, or not the kernel's."""
    found = _XID.match(kernel_text(record))
    if found is None:
        return None
    domain, bus, device, number, rest = found.groups()
    bus_id, rest = f"{int(domain, 16):08x}:{bus}:{device}.0".lower(), rest or ""
    process = _PROCESS.match(rest)
    if process is None:
        return Xid(bus_id, int(number), text=_printable(rest))
    pid, program = process.groups()
    text = rest[process.end() :].lstrip(", ")
    return Xid(bus_id, int(number), int(pid) if pid.isdigit() else 0, _printable(program or ""), _printable(text))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:_TEXT])
