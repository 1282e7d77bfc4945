"""A client of the pre-fork server."""

from __future__ import annotations

import socket
import time

from nvc.prefork import packets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.prefork.caller import Caller, ProcessAttributes
    from nvc.prefork.request import Request
    from nvc.prefork.worker import StandbyWorker

#: Seconds that a client may take for a packet that it owes.
CLIENT_TIMEOUT_S = 2.0


class Session:
    """One client. ``pid`` is 0 until the work has begun.

    until: when the server looks whether what it waits for has come: a packet, the begin of the work, its end.
    """

    def __init__(self, connection: socket.socket, caller: Caller) -> None:
        self.connection = connection
        self.caller = caller
        self.until = time.monotonic() + CLIENT_TIMEOUT_S
        self.request: Request | None = None
        self.packet = b""
        self.attributes: ProcessAttributes | None = None
        self.descriptors: list[int] = []
        self.pid = 0
        self.pidfd = -1
        #: The worker, if it was forked before. signalled: the client has handed a signal on.
        self.standby: StandbyWorker | None = None
        self.signalled = False

    def close_descriptors(self) -> None:
        packets.close_all(self.descriptors)
        self.descriptors = []
