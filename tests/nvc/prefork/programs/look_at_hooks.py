"""``look_at_hooks.py [FAIL]``: a process that was forked before its request runs hooks of a CDI spec.

Prints what it was like meanwhile and is afterwards, as JSON. FAIL: the hooks raise an error with this text; but
"stay": they give up the right to leave the container, and "pivoted": the container has another root.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[4]))
from hook import process as hook_process
from nvc.base.errors import InputError, NvcError
from nvc.base.log import Log, open_log
from nvc.cdi import worker
from nvc.linux import const, process, syscalls
from nvc.prefork.service import StandbyService
from rpc.client import Client


def namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""  # it has ended


def hooks(words: Sequence[str], state: bytes, log: Log) -> None:
    hook_process.clean_environment(trusted=False)
    if "stay" in words:
        syscalls.capset(0, 0, 0)
    elif words:
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


HOME = namespace("self")
os.environ["LD_PRELOAD"] = "/nowhere"
standby = StandbyService(hooks)
standby.listen()
taken = worker.in_advance
assert taken is not None
worker.in_advance = lambda seconds, log: Kept(found) if (found := taken(seconds, log)) else None  # type: ignore
# As the process of a hook does.
syscalls.unshare(const.CLONE_NEWNS)
if "pivoted" in sys.argv:
    syscalls.mount(None, "/", None, const.MS_REC | const.MS_PRIVATE)
    syscalls.mount("tmpfs", "/", "tmpfs", 0)  # over what is our root still
process.caller, process.caller_started = 7, 8
try:
    worker.run(lambda: print("forked"), 9.0, asked=worker.Asked(tuple(sys.argv[1:]), "\xff{"), log=open_log("log"))
except NvcError as error:
    print(json.dumps({"error": type(error).__name__, "text": error.message}))
standby.reap()
worker.run(lambda: os.write(2, b"\nforked"), 9.0, asked=worker.Asked())
