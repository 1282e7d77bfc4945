"""``leave_container.py REQUEST FILE``: a standby worker does a hook of a CDI spec, in a mount namespace of its own.

Writes into FILE, as JSON, that namespace, this process's, and those of the worker meanwhile and after its answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.linux import const, process, syscalls
from nvc.prefork import caller, service
from nvc.prefork.request import Programs
from nvc.prefork.worker import StandbyWorker

REQUEST, FILE = Path(sys.argv[1]), Path(sys.argv[2])
FOUND: list[str] = []


def look() -> int:
    FOUND.append(os.readlink("/proc/self/ns/mnt"))
    return 0


class Service(service.StandbyService):
    """The last that is asked of it, after the answer, is its end."""

    def reap(self) -> None:
        look()
        FILE.write_text(json.dumps(FOUND))
        super().reap()


def elsewhere() -> int:
    """A mount namespace."""
    read, write = os.pipe()

    def hold() -> None:
        syscalls.unshare(const.CLONE_NEWNS)
        os.write(write, b"x")
        time.sleep(60)

    child = process.fork(hold)
    os.read(read, 1)
    found = os.open(f"/proc/{child}/ns/mnt", os.O_RDONLY)
    os.kill(child, signal.SIGKILL)
    return found


service.StandbyService = Service  # type: ignore[misc]
namespace = elsewhere()
FOUND += [os.readlink(f"/proc/self/fd/{namespace}"), os.readlink("/proc/self/ns/mnt")]
attributes = caller.attributes_of(os.getpid())
standby = StandbyWorker(attributes, Programs(look, look, look, look, None, None, lambda numbers: None, None))
here = os.open("/", os.O_PATH)
assert standby.give(REQUEST.read_bytes(), [0, 1, 2, here, namespace], attributes, (os.getpid(), 1))
os.waitpid(standby.pid, 0)
