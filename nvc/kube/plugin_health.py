"""Which GPUs must not be given, and why: what the kernel's log says of them, and what of them is missing.

The driver reports faults as "NVRM: Xid (PCI:0000:07:00): 79, ..." (NVIDIA, "Xid Errors"); reading the log needs no
library of the driver, which a lost GPU can block. A GPU with an Xid counts as bad until this object is made anew: only
a reset or a reboot mends it, and neither leaves this program running with its devices.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from nvc.driver.locate import host_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from nvc.model import Gpu, Host

KERNEL_LOG = "/dev/kmsg"
#: Xids that a program brings about and that leave the GPU usable (k8s-device-plugin, api/config/v1/health.go).
HARMLESS = (13, 31, 43, 45, 68, 109)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})[^)]*\): (\d+)(?:, ([^\n]*))?")
#: One record of the kernel's log is at most 8192 bytes (kernel/printk/printk.c: CONSOLE_EXT_LOG_MAX).
_RECORD = 8192
#: Records of one look: a kernel that logs without end must not hold the caller.
_RECORDS_LIMIT = 10_000
_TEXT_LIMIT = 120


class Health:
    """Of some GPUs; a context manager. problem: why the kernel's log is not read, or ""."""

    def __init__(self, host: Host, gpus: Sequence[Gpu]) -> None:
        self.problem = ""
        self._bad: dict[str, str] = {}
        self._gpus = {gpu.bus_id: gpu.uuid for gpu in gpus}
        # What is missing from the start is a matter of this machine (WSL has no nodes of GPUs).
        parts = [(gpu.uuid, host_path(host.nodes, path)) for gpu in gpus for path in (gpu.proc_path, gpu.node.path)]
        self._parts = [(uuid, path) for uuid, path in parts if os.path.exists(path)]
        self._log = -1
        try:
            self._log = os.open(host_path(host.system, KERNEL_LOG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)
        except OSError as error:
            self.problem = f"{KERNEL_LOG} cannot be read, so Xids are not seen: {error.strerror}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def look(self) -> dict[str, str]:
        """UUID -> why it must not be given, of the bad ones. Raises nothing."""
        for record in self._records():
            for found in _XID.finditer(record):
                domain, bus, device, number, text = found.groups()
                uuid = self._gpus.get(f"{int(domain, 16):08x}:{bus.lower()}:{device.lower()}.0")
                if uuid is not None and int(number) not in HARMLESS:
                    self._bad.setdefault(uuid, f"Xid {number}{f': {text[:_TEXT_LIMIT]}' if text else ''}")
        missing = {uuid: f"{path} is gone" for uuid, path in self._parts if not os.path.exists(path)}
        return {**missing, **self._bad}

    def _records(self) -> list[str]:
        found: list[str] = []
        while self._log >= 0 and len(found) < _RECORDS_LIMIT:
            try:
                record = os.read(self._log, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next one is the oldest that is left
            except OSError:
                break
            if not record:
                break
            found.append(record.decode(errors="replace"))
        return found
