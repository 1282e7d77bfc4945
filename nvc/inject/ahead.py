"""Services that a process forks before it knows what for, and that import meanwhile.

They change nothing until the first request. A process with a debug log does not take them: they have not inherited it.
A service that is not needed ends with the process, and init reaps it.
"""

from __future__ import annotations

from nvc.base.log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rpc.client import Client


def begin_container() -> None:
    """Fork the container service that ``nvc.container.service.start`` takes."""
    from nvc.container import service

    log = Log.none()
    handlers = service.Handlers(log)

    def prepare() -> None:
        handlers.prepare()
        import nvc.container.lookup  # noqa: F401

    def take(deadline: float, log: Log) -> Client | None:
        service.in_advance = None
        if log.enabled or not client.running:
            client.close()
            return None
        client.allow(deadline)
        return client

    try:
        client = service.fork(handlers, log, prepare=prepare, deadline=1.0)
    except OSError:
        return  # the command forks its own when it needs it, or says why it cannot
    service.in_advance = take


def begin_driver() -> None:
    """Fork the driver service that ``nvc.driver.service.start`` takes."""
    from nvc.driver.standby import StandbyDriver

    try:
        StandbyDriver()
    except OSError:
        return
