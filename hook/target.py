"""The container that a hook run is about, between reading about it and giving it a GPU."""

from __future__ import annotations

from nvc.base.budgets import TIMEOUT_S
from nvc.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Target(Record):
    """The container, and what the command line said.

    pid: of the container's first process; None when the hook runs in the container's namespaces already.
    rootfs: absolute. env: the container's environment. config, debug, sim: absolute paths or "". timeout: seconds.
    program: the name in messages. device_mounts: requests of ``bundle.Bundle``. identifier: the runtime's id of the
    container, or "". share: the annotation that asks for a share, or "". bundle: its path. seccomp, guard_off: as in
    ``bundle.Bundle``. fixed, name: as in ``nvc.request.injection.ShareRequest``.
    """

    pid: int | None
    rootfs: str
    env: dict[str, str]
    privileged: bool
    config: str = ""
    debug: str = ""
    sim: str = ""
    timeout: float = TIMEOUT_S
    program: str = "nvc-hook"
    device_mounts: tuple[str, ...] = ()
    identifier: str = ""
    share: str = ""
    bundle: str = ""
    seccomp: dict[str, Any] = {}
    guard_off: bool = False
    fixed: tuple[str, ...] = ()
    name: str = ""
