"""A pre-fork server. An edit prints the state of its process, and then changes in it what LEAVE names."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from hook import warm
from hook.runtime import refused
from hook.runtime.journal import Journal
from nvc.linux import procfd, rights, syscalls
from nvc.prefork import program
from rpc import process

HIGH = 400
OUT = 1


def found() -> dict[str, object]:
    """What a following edit could depend on. pinned: through what ``nvc.linux.procfd`` keeps open."""
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    numbers = [int(number) for number in os.listdir("/proc/self/fd")]
    numbers = [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]
    mask = os.umask(0)
    return {
        "pid": os.getpid(),
        "status": {name: value for name, value in status.items() if name in STATUS},
        "limits": [resource.getrlimit(number) for number in range(16)],
        "files": [os.readlink(f"/proc/self/fd/{one}") for one in numbers if one > 2 and one not in process.private],
        "pinned": os.path.isdir(f"/proc/self/fd/{procfd.pin().fileno()}/task"),
        "umask": mask,
        "directory": os.getcwd(),
        "variables": {name: value for name, value in os.environ.items() if name != "LEAVE"},
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }


STATUS = "Seccomp Seccomp_filters NoNewPrivs CapEff CapPrm CapBnd Uid Gid Threads SigBlk SigCgt".split()  # noqa: SIM905


def _filter() -> None:
    refused.close(Journal())


def _fewer_rights() -> None:
    effective, permitted, inheritable = syscalls.capget()
    gone = ~(1 << rights.CAP_SYS_ADMIN)
    syscalls.capset(effective & gone, permitted & gone, inheritable)


#: Each leaves one thing.
LEAVE: dict[str, Callable[[], object]] = {
    "signals": lambda: signal.signal(signal.SIGHUP, lambda *_: None),
    "": lambda: None,
    "descriptor": lambda: os.open("/", os.O_PATH),
    "high": lambda: os.dup2(0, HIGH),
    "umask": lambda: os.umask(0o777),
    "directory": lambda: os.chdir("/proc"),
    "variable": lambda: os.environ.update(NVC_SIM="/nowhere"),
    "filter": _filter,
    "rights": _fewer_rights,
    "group": lambda: os.setegid(1),
    "limit": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "nice": lambda: os.nice(-1),
    "streams": lambda: os.closerange(0, 3),
}


def edit() -> int:
    """Of no config.json. Done, as it says."""
    os.write(OUT, json.dumps(found()).encode())
    LEAVE[os.environ["LEAVE"]]()
    return 0


if __name__ == "__main__":
    program.run(warm.programs().replace(runtime=edit))
