"""``configure --dry-run``: the plan, for people or as JSON."""

from __future__ import annotations

from nvc.cli import text
from nvc.container.operations import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.cli.compat.configure import ConfigureRequest
    from nvc.cli.settings import Settings
    from nvc.container.operations import Operation


def show(request: ConfigureRequest, settings: Settings, operations: Sequence[Operation]) -> None:
    """Print what ``configure`` would do, in the order in which it would do it."""
    if request.dry_run == "json":
        data = {
            "rootfs": request.rootfs,
            "pid": request.pid,
            "simulated": settings.sim or None,
            "operations": encode(operations),
        }
        text.emit(1, text.json_text(data))
        return
    machine = f", with the SIMULATED machine in {settings.sim}" if settings.sim else ""
    process = f" of process {request.pid}" if request.pid is not None else ""
    head = f"# what configure would do to {request.rootfs}{process}{machine}; nothing was changed\n"
    text.emit(1, head + "".join(f"{operation.describe()}\n" for operation in operations))
