"""Requests and replies of the container service.

Its verbs are in ``nvc.container.verbs``, its handlers in ``nvc.container.service``.
"""

from __future__ import annotations

from nvc.base.record import DecodeError, Record
from nvc.container.compat import CompatLibrary
from nvc.container.operations import decode, encode
from nvc.model import Container

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.container.operations import Operation

# Annotations of Records are resolved at run time: these names are not for type checkers only.
_DECODED = (CompatLibrary, Container)


class ContainerConfig(Record):
    """Which container (nvc_container_config). An empty directory or ldconfig is determined.

    For nvc_container_config_new; nvc_container_config_free: nothing to free.
    pid: a process of the container, or None to work in the caller's own mount namespace.
    ldconfig: the program that updates the loader cache, "@" before a host path.
    """

    pid: int | None
    rootfs: str
    binaries_directory: str = ""
    libraries_directory: str = ""
    libraries32_directory: str = ""
    cudart_directory: str = "/usr/local/cuda"
    ldconfig: str = ""


class InspectRequest(Record):
    """Look a container up. find_cgroup: also its device cgroup; find_compat: also its CUDA compat libraries."""

    config: ContainerConfig
    supervised: bool
    find_cgroup: bool
    find_compat: bool


class InspectReply(Record):
    container: Container
    compat: CompatLibrary | None


class ApplyRequest:
    """Apply operations to the container that was inspected, all or none of them.

    driver_root: directory below which the operations' host paths lie.
    """

    def __init__(self, driver_root: str, operations: tuple[Operation, ...]) -> None:
        self.driver_root = driver_root
        self.operations = operations

    def as_data(self) -> dict[str, Any]:
        return {"driver_root": self.driver_root, "operations": encode(self.operations)}

    @classmethod
    def from_data(cls, data: object) -> ApplyRequest:
        """Raises DecodeError for anything that ``as_data`` cannot have made."""
        if not isinstance(data, dict) or set(data) != {"driver_root", "operations"}:
            raise DecodeError("ApplyRequest: expected driver_root and operations")
        if not isinstance(data["driver_root"], str):
            raise DecodeError("ApplyRequest.driver_root: expected str")
        return cls(data["driver_root"], decode(data["operations"]))


class ApplyReply(Record):
    """done: operations that changed something; the others were already in effect."""

    done: int
