"""The program that the agent starts: imports, and then the loop (``nvc.prefork.server``)."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from nvc.base import record
from nvc.guard import filter
from nvc.linux import rights
from nvc.prefork import request as prefork_request
from nvc.prefork import worker
from nvc.prefork.server import STALE, Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from nvc.prefork.request import Programs


def run(programs: Programs) -> NoReturn:
    """``LISTENER LIBRARY PARENT INVENTORY``: serve, after ``ready`` on standard output (``nvc.agent.standby``)."""
    listener, library, parent, inventory_path = sys.argv[1:]
    # Not SIGKILL: what runs for a container comes to its end also without an agent.
    rights.parent_death_signal(int(parent), signal.SIGTERM)
    rights.set_name("nvc:[warm]")
    stamp = prefork_request.stamp_of(library)
    for module in worker.MODULES:
        __import__(module)
    record.prepare()
    filter.prepare()
    wake, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    for one in (signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)  # a terminal's, for the agent, which says what it means for us
    os.chdir("/")
    loop = Server(socket.socket(fileno=int(listener)), library, programs, inventory_path)
    if stamp != prefork_request.stamp_of(library):
        os._exit(STALE)
    # What is there now stays: a fork that looks for garbage among it would only copy its pages.
    gc.disable()
    gc.freeze()
    loop.prepare()
    os.write(1, b"ready\n")
    os._exit(loop.run(wake))
