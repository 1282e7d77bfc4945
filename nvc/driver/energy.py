"""The process that reads GPUs' counters of energy for the agent (``nvc.agent.energy_counters``).

The resource manager has no public question for them, so it is NVML that is asked, confined as in the driver service. A
line each way: an empty one, and {"GPU-...": millijoules} or {"error": text}. It ends with its caller.
"""

from __future__ import annotations

import os
import sys

from nvc.base.errors import NvcError
from nvc.base.log import Log
from nvc.driver import service
from nvc.driver.nvml import Nvml
from nvc.linux import rights
from nvc.model import Host
from rpc.codec import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """argv: where nvc is, and as JSON the host, the user and the caller's pid."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what the library prints
    told = loads(sys.argv[2].encode())
    rights.set_name("nvc:[energy]")
    nvml: Any = None
    try:
        host = Host.from_data(told["host"])
        nvml = service.confined(host, told["uid"], told["gid"], told["parent"], Log.none())
        problem = ""
    except NvcError as error:
        problem = error.message
    for _ in sys.stdin.buffer:
        os.write(answers, dumps(_answer(nvml, problem)) + b"\n")


def _answer(nvml: Any, problem: str) -> dict[str, Any]:
    if problem:
        return {"error": problem}
    try:
        return nvml.energy() if isinstance(nvml, Nvml) else {}  # Tegra has none
    except NvcError as error:
        return {"error": error.message}
