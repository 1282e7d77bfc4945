"""Services that a process forks before it knows what for, and that begin meanwhile.

They change nothing until the first request. A process with a debug log does not take them: they have not inherited it.
A service that is not needed ends with the process, and init reaps it.
"""

from __future__ import annotations

import os

from nvc.base.errors import InputError
from nvc.base.log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.container.service import ContainerClient
    from nvc.driver.service import Begin
    from rpc.client import Client


def begin_container() -> None:
    """Fork the container service that ``nvc.container.service.start`` takes."""
    from nvc.container import service

    log = Log.none()
    handlers = service.Handlers(log)

    def prepare() -> None:
        handlers.prepare()
        import nvc.container.lookup  # noqa: F401

    def take(deadline: float, log: Log, wait: bool) -> ContainerClient | None:
        service.in_advance = None
        if log.enabled or not client.running:
            client.close()
            return None
        client.allow(deadline)
        return service.ContainerClient(client, wait=wait)

    try:
        client = service.fork(handlers, log, prepare=prepare, deadline=1.0)
    except OSError:
        return  # the command forks its own when it needs it, or says why it cannot
    service.in_advance = take


def begin_driver(expected: Begin) -> None:
    """Fork the driver service that ``nvc.driver.service.start`` takes if that asks for the same NVML."""
    from nvc.driver import service

    def take(begin: Begin, deadline: float, log: Log) -> Client | None:
        service.in_advance = None
        if begin != expected or log.enabled or not client.running:
            client.close()
            return None
        client.allow(deadline)
        return client

    try:
        # The deadline is set when it is taken.
        client = service.fork(lambda: expected, 1.0, Log.none())
    except OSError:
        return
    service.in_advance = take


def expected(before: Sequence[str]) -> Begin | None:
    """Where NVML will be asked, and as which user; None where only the whole command line says.

    before: the options before the command, and --sim wherever it is. Of those only --no-cache and --sim=DIR are known
    here: another may name a user or a root, or have modules loaded first.
    """
    from nvc.driver.service import Begin
    from nvc.model import Host

    options = {*before} - {"--no-cache"}
    # The service has no log, and is not taken where there is one.
    if "NVC_DEBUG_FILE" in os.environ or "NVC_SIM" in os.environ or len(options) > 1:
        return None
    if not options:
        return Begin(Host(), None, None)
    option, _, directory = options.pop().partition("=")
    if option != "--sim" or not directory:
        return None
    from nvc import sim

    try:
        return Begin(sim.host(directory), None, None)
    except InputError:
        return None
