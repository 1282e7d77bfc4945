"""``look_at_hooks.py [FAIL]``: a process that was forked before its request runs hooks of a CDI spec.

Prints what it was like meanwhile and is afterwards, as JSON. FAIL: the hooks raise an error with this text; but
"stay": they give up the right to leave the container, "pivoted": the container has another root, and "covered": its
/proc says that this process is in another mount namespace.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[4]))
from hook import process as hook_process
from nvc.base.errors import InputError, NvcError
from nvc.base.log import Log, open_log
from nvc.cdi import worker
from nvc.linux import const, process, syscalls
from nvc.linux.fd import Fd
from nvc.linux.rights import parent_death_signal
from nvc.prefork.service import StandbyService
from rpc.client import Client

PROC = os.open("/proc", os.O_PATH)


def namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"{pid}/ns/mnt", dir_fd=PROC)
    except OSError:
        return ""  # it has ended


def hooks(words: Sequence[str], state: bytes, log: Log) -> None:
    hook_process.clean_environment(trusted=False)
    if "stay" in words:
        syscalls.capset(0, 0, 0)
    elif words and words[0] != "covered":
        raise InputError(words[0])
    log.info("by the hooks")
    seen = {
        "namespace": namespace("self"),
        "state": list(state),
        "caller": [process.caller, process.caller_started],
        "environment": dict(os.environ),
        "mask": os.umask(0),
        "rights": sum(1 << number for number in range(64) if syscalls.capget()[1] >> number & 1),
    }
    os.write(2, json.dumps(seen).encode())


class Kept:
    """A client that is asked about its process before it ends."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def call(self, *given: Any) -> None:
        self._client.call(*given)

    def close(self, *, wait: bool) -> None:
        print(json.dumps({"after": namespace(self._client.pid), "home": HOME, "inside": namespace("self")}))
        self._client.close(wait=wait)


def elsewhere(ready: int) -> None:
    """A process in another mount namespace, as long as this one lives."""
    parent_death_signal(os.getppid())
    syscalls.unshare(const.CLONE_NEWNS)
    os.write(ready, b"x")
    signal.pause()


HOME = namespace("self")
os.environ["LD_PRELOAD"] = "/nowhere"
standby = StandbyService(hooks)
standby.listen()
taken = worker.in_advance
assert taken is not None


def keep(seconds: float, log: Log) -> tuple[Client, Fd] | None:
    found = taken(seconds, log)
    return (cast("Client", Kept(found[0])), found[1]) if found is not None else None


worker.in_advance = keep
# As the process of a hook does.
syscalls.unshare(const.CLONE_NEWNS)
if "pivoted" in sys.argv:
    syscalls.mount(None, "/", None, const.MS_REC | const.MS_PRIVATE)
    syscalls.mount("tmpfs", "/", "tmpfs", 0)  # over what is our root still
standby.inside = Fd(os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=PROC), "ns/mnt")
if "covered" in sys.argv:
    syscalls.mount(None, "/", None, const.MS_REC | const.MS_PRIVATE)
    read, write = os.pipe()
    child = process.fork(lambda: elsewhere(write))
    os.read(read, 1)
    syscalls.mount("/proc", "/mnt", None, const.MS_BIND)
    syscalls.mount("tmpfs", "/proc", "tmpfs", 0)
    os.makedirs("/proc/self/ns")
    os.symlink(f"/mnt/{child}/ns/mnt", "/proc/self/ns/mnt")
process.caller, process.caller_started = 7, 8
try:
    worker.run(lambda: print("forked"), 9.0, asked=worker.Asked(tuple(sys.argv[1:]), "\xff{"), log=open_log("log"))
except NvcError as error:
    print(json.dumps({"error": type(error).__name__, "text": error.message}))
standby.reap()
worker.run(lambda: os.write(2, b"\nforked"), 9.0, asked=worker.Asked())
