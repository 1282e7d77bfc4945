"""The inventory for a process with threads: found by a program of its own, because finding it forks.

`nvc-py kube inventory` prints it; the driver starts that when the machine's key (``nvc.driver.machinekey``) changes,
which costs some system calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from nvc.base.errors import BY_STAGE, DetectionError, NvcError
from nvc.base.record import DecodeError
from nvc.model import Inventory
from rpc.codec import CodecError, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvc.inject.api import Context

_SECONDS = 60


def find(command: Sequence[str]) -> Inventory:
    """What ``command`` prints. Raises NvcError."""
    try:
        done = subprocess.run(list(command), capture_output=True, timeout=_SECONDS, check=False)
        answer = loads(done.stdout)
        if isinstance(answer, dict) and "message" in answer:
            raise BY_STAGE.get(answer.get("stage", ""), NvcError)(answer["message"], hint=answer.get("hint", ""))
        return Inventory.from_data(answer)
    except (OSError, subprocess.SubprocessError, CodecError, DecodeError) as error:
        raise DetectionError(f"the machine's GPUs could not be found: {error}", hint="nvc-py doctor") from error


def write(opened: Callable[[], Context]) -> None:
    """Print this machine's inventory, or why there is none, as data. opened: makes the library's context."""
    try:
        with opened() as context:
            answer = context.inventory().as_data()
    except NvcError as error:
        answer = {"stage": error.stage, "message": error.message, "hint": error.hint}
    os.write(1, dumps(answer))


def command(options: Sequence[str]) -> list[str]:
    """This program with the global ``options``, as it was started."""
    program = sys.argv[0]
    start = [program] if os.access(program, os.X_OK) and os.path.isfile(program) else [sys.executable, "-m", "nvc"]
    return [*start, *options, "kube", "inventory"]
