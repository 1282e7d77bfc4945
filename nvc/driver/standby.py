"""A driver service that is forked before the command line has been read, and imports what NVML's process needs.

It initialises NVML when ``nvc.driver.service.start`` says on which host and as whom. Until then it is a copy of the
command, with the same rights, and reads nothing but its socket; it ends with the command.
"""

from __future__ import annotations

import os

from nvc.base.log import Log
from nvc.driver import service
from nvc.driver.service import Begin
from rpc import channel, codec, process
from rpc.errors import ChannelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rpc.client import Client


class StandbyDriver:
    """The service. From now on ``nvc.driver.service.start`` takes it, once."""

    def __init__(self) -> None:
        """Raises OSError when there is no process or descriptor left."""
        self._end, self._other = channel.pair()
        try:
            # The deadline is set when it is taken.
            self._client = service.fork(self._wait, 1.0, Log.none())
        except BaseException:
            self._end.close()
            raise
        finally:
            self._other.close()
        process.private.add(self._end.fileno())
        service.in_advance = self.take

    def _wait(self) -> Begin:
        """In the service."""
        self._end.close()
        import nvc.bindings.nvml
        import nvc.driver.confine
        import nvc.driver.nvml  # noqa: F401

        received = self._other.receive()
        self._other.close()
        if received is None:
            os._exit(0)  # it was not needed
        begin: Begin = Begin.from_data(codec.loads(received[0]))
        return begin

    def take(self, begin: Begin, deadline: float, log: Log) -> Client | None:
        """It, on its way to NVML; None when it cannot be it: it has died, or there is a log, which it has not."""
        service.in_advance = None
        sent = False
        try:
            if not log.enabled:
                self._end.send(codec.dumps(begin.as_data()))
                sent = True
        except (ChannelError, OSError):
            pass  # it has died
        process.private.discard(self._end.fileno())
        self._end.close()
        if not sent:
            self._client.close()
            return None
        self._client.allow(deadline)
        return self._client
