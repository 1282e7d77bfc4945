"""Which GPUs the device plugin must not give: those with an error in the kernel's log, those whose files are gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.driver.locate import host_path
from nvc.kube.devices import bus_id
from nvc.kube.xids import KERNEL_LOG, KernelLog, problems

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from nvc.model import Gpu, Host


class Health:
    """Of some GPUs; a context manager. problem: why the kernel's log is not read, or ""."""

    def __init__(self, host: Host, gpus: Sequence[Gpu]) -> None:
        self._log = KernelLog(host_path(host.system, KERNEL_LOG))
        self.problem = self._log.problem
        self._addresses = {gpu.uuid: bus_id(gpu) for gpu in gpus}
        # What is missing from the start is a matter of this machine (WSL has no nodes of GPUs).
        self._files = {
            gpu.uuid: [
                path
                for path in (host_path(host.nodes, gpu.proc_path), host_path(host.nodes, gpu.node.path))
                if _is(path)
            ]
            for gpu in gpus
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.__exit__()

    def look(self) -> dict[str, str]:
        """UUID -> why it must not be given, of the bad ones. Raises nothing."""
        present = [uuid for uuid, paths in self._files.items() if all(map(_is, paths))]
        return problems(self._log.look(), self._addresses, present)


def _is(path: str) -> bool:
    return os.path.exists(path)
