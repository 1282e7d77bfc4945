"""``look_at_worker.py REQUEST DIRECTORY PID``: a standby worker and its service, given attributes that are not ours.

The worker prints, as JSON, whether it and the service have them. PID: no process has it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[4]))
from nvc.base.errors import ContainerError
from nvc.base.log import open_log
from nvc.container import service
from nvc.container.messages import ContainerConfig, InspectRequest
from nvc.prefork import caller
from nvc.prefork.request import Programs
from nvc.prefork.worker import StandbyWorker

PID = int(sys.argv[3])
#: Pids of services that were forked in advance.
STANDBY: list[int] = []
made = service.start_service


def without_own(pid: int) -> caller.ProcessAttributes:
    """Its attributes, less the limits that the service gives itself (``nvc.base.budgets``)."""
    found = caller.attributes_of(pid)
    own = (resource.RLIMIT_DATA, resource.RLIMIT_CPU)
    return found.replace(limits=tuple(limit for limit in found.limits if limit[0] not in own))


def look() -> int:
    log = open_log("log")
    helper = service.start(deadline=7.0, log=log)
    pid = helper._client.pid
    try:
        helper.inspect(InspectRequest(ContainerConfig(PID, "/nowhere"), True, False, False))
    except ContainerError:
        pass  # it has answered, so it has taken everything over
    (sandbox,) = [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    files = f"/proc/{pid}/fd"
    seen = {
        "sandbox": caller.attributes_of(sandbox) == caller.attributes_of(os.getpid()),
        "same": without_own(pid) == without_own(os.getpid()),
        "limits": caller.attributes_of(pid).limits[1],
        "oom": caller.attributes_of(pid).oom_score,
        "nice": caller.attributes_of(pid).nice,
        "directory": os.readlink(f"/proc/{pid}/cwd"),
        "stderr": os.stat(f"{files}/2").st_ino == os.fstat(2).st_ino,
        "log": any(os.readlink(f"{files}/{number}").endswith("/log") for number in os.listdir(files)),
        "standby": pid in STANDBY,
    }
    sys.stdout.write(json.dumps(seen))
    sys.stdout.flush()
    helper.close()
    return 7


def noted(*words: Any, **named: Any) -> Any:
    client = made(*words, **named)
    STANDBY.append(client.pid)
    service.start_service = made  # only what is forked in advance is noted
    return client


def main() -> None:
    service.start_service = noted
    ours = caller.attributes_of(os.getpid())
    standby = StandbyWorker(ours, Programs(look, look, look, look, None, None, lambda numbers: None, None))
    attributes = ours.replace(
        limits=tuple((n, 4096, 8192) if n == 1 else (n, soft, hard) for n, soft, hard in ours.limits),
        oom_score=min(1000, ours.oom_score + 7),
        nice=ours.nice + 3,
    )
    data = Path(sys.argv[1]).read_bytes()
    here = os.open(sys.argv[2], os.O_PATH)
    assert standby.give(data, [0, 1, 2, here], attributes)
    status = os.waitstatus_to_exitcode(os.waitpid(standby.pid, 0)[1])
    print(json.dumps([status, ours.oom_score, ours.nice]), file=sys.stderr)


main()
