"""What ``nvc.guard.supervisors`` holds of a tenant."""

from __future__ import annotations

import os

from nvc.guard.channel import HEAD, REMOVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

    from nvc.guard.channel import Connection
    from nvc.guard.pages import Counters
    from nvc.guard.plan_file import Plan


class HeldTenant:
    """A tenant's connection, plan and counters. process: of a monitor that this process started.

    published: an eventfd that its supervisor writes to when its counters' file got something.
    """

    def __init__(
        self, connection: Connection, plan: Plan, counters: Counters, published: int, pids: tuple[int, int]
    ) -> None:
        self.connection, self.plan, self.counters, self.published = connection, plan, counters, published
        self.monitor, self.supervisor = pids
        self.process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        self.connection.close()
        self.plan.close()
        self.counters.close()
        os.close(self.published)

    def begin_end(self) -> None:
        """Its channels are enabled, its processes' later calls fail: by a request to its monitor. Raises OSError."""
        self.connection.send(HEAD.pack(REMOVE, 0))

    def end(self) -> None:
        """What ``begin_end`` began is over when this returns. Waits for its monitor. Raises OSError."""
        try:
            self.connection.answer()
        finally:
            self.close()
            if self.process is not None:
                self.process.wait()
