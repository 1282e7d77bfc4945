"""The OCI state that a runtime writes on a hook's stdin: bounded, with a time limit, decoded into a ``State``.

Runtimes differ (runc 1.1, crun 1.8 to 1.21): crun adds ``root``, calls a container that is being created "created"
where runc says "creating", and reports pid 0 to createContainer hooks where runc reports 1.
"""

from __future__ import annotations

import os
import select
import time

from hook import files
from nvc.base.budgets import STATE_BYTES
from nvc.base.errors import ContainerError, InputError, shown
from nvc.base.record import Record
from rpc.codec import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: A state is a few hundred bytes plus the container's annotations; Kubernetes limits those to 256 KiB.
STATE_LIMIT = STATE_BYTES
#: Linux's PID_MAX_LIMIT on 64-bit machines.
PID_LIMIT = 1 << 22

#: Hooks run in the runtime's namespaces: the container is reached through its pid.
OUTSIDE = ("prestart", "createRuntime")
#: The hook already runs in the container's namespaces, before pivot_root: host paths are visible, and the pid of the
#: state (runc: 1, crun: 0) names nothing that is needed.
INSIDE = ("createContainer",)
#: Accepted because engines register one hook for all stages; there is nothing to undo or to report.
IDLE = ("poststart", "poststop")


class State(Record):
    """What the hook uses of the state.

    pid: the container's first process as the hook sees it, 0 when the runtime gave none.
    bundle: absolute path of the bundle. root: rootfs as the runtime gave it (may be relative to the bundle), or "".
    share: the annotation that asks for a share, or "".
    """

    id: str
    status: str
    pid: int
    bundle: str
    root: str = ""
    share: str = ""


def read(descriptor: int, timeout: float, limit: int = STATE_LIMIT) -> bytes:
    """Everything up to end of file.

    Raises InputError when ``timeout`` seconds pass before the end, when there are more than ``limit`` bytes, and
    when reading fails.
    """
    deadline = time.monotonic() + timeout
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    chunks: list[bytes] = []
    size = 0
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(remaining * 1000):
            raise InputError(
                f"no complete container state on stdin within {timeout:g} s",
                hint="an OCI runtime writes the state and closes the pipe; by hand, add: < state.json",
            )
        try:
            chunk = os.read(descriptor, 1 << 16)
        except OSError as error:
            raise InputError(f"container state on stdin cannot be read: {error.strerror}") from error
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise InputError(f"container state on stdin is larger than {limit >> 10} KiB")


def decode(data: bytes, directory: str = "") -> State:
    """The state in ``data``. A relative bundle is taken from ``directory``, unless that is "".

    Raises InputError for anything that is not an OCI state, and ContainerError for a container that has stopped.
    """
    if not data.strip():
        raise InputError("container state on stdin is empty", hint="a hook is started by an OCI runtime, not by hand")
    try:
        state = loads(data, limit=STATE_LIMIT)
    except ValueError as error:
        raise InputError(f"container state on stdin is not JSON: {error}") from error
    if not isinstance(state, dict):
        raise InputError("container state on stdin is not a JSON object")
    status = _text(state, "status")
    name = _text(state, "id")
    if status == "stopped":
        raise ContainerError(f"container {name or '(no id)'} is stopped", hint="a GPU is given before it starts")
    return State(name, status, _pid(state), _bundle(state, directory), _path(state, "root"), _share(state))


def require_pid(state: State) -> int:
    """The pid to enter the container by; raises ContainerError when the state has none that can be a container's."""
    if state.pid <= 0:
        raise ContainerError("container state has no pid", hint=f"status is {shown(state.status or 'missing')}")
    if state.pid == 1:
        # Entering "the container" would enter the namespaces of the machine's (or our own container's) init.
        raise ContainerError("container state has pid 1, which cannot be a container's process here")
    return state.pid


def require_inside(state: State, hint: str) -> None:
    """Raises ContainerError when this process is not in the container's mount namespace, as a createContainer hook is.

    Outside of it, everything would be mounted on the host. Runtimes report the container's first process, by its number
    in the pid namespace that the hook is in, too: 1, or another one in a namespace that the container joined. crun
    reports none there. One that is gone, or may not be looked at, tells nothing.
    """
    if state.pid <= 1:
        return
    from nvc.linux.process import first_of_namespace

    pid, number = first_of_namespace()
    try:
        ours = os.stat("/proc/self/ns/mnt")
        theirs = os.stat(f"/proc/{pid if number == state.pid else state.pid}/ns/mnt")
    except OSError:
        return
    if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
        raise ContainerError("called as createContainer, but not in the container's mount namespace", hint=hint)


def _pid(state: dict[str, Any]) -> int:
    pid = state.get("pid", 0)
    if pid is None:
        return 0
    if not isinstance(pid, int) or isinstance(pid, bool):
        raise InputError(f"container state: pid is {_kind(pid)}, not an integer")
    if not 0 <= pid <= PID_LIMIT:
        raise InputError(f"container state: pid is not between 0 and {PID_LIMIT}")
    return pid


def _bundle(state: dict[str, Any], directory: str) -> str:
    # bundlePath: runc before Docker 17.06.
    bundle = _path(state, "bundle") or _path(state, "bundlePath")
    if not bundle:
        raise InputError("container state: bundle is missing")
    if not bundle.startswith("/"):
        if not directory:
            raise InputError(f"container state: bundle {bundle!r} is not an absolute path")
        bundle = f"{directory}/{bundle}"
    return bundle


def _share(state: dict[str, Any]) -> str:
    annotations = state.get("annotations")
    value = annotations.get("nvc.share") if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else ""


def _path(state: dict[str, Any], key: str) -> str:
    path = _text(state, key)
    if "\0" in path:
        raise InputError(f"container state: {key} contains a NUL character")
    if not files.can_be_a_path(path):
        raise InputError(f"container state: {key} cannot be a path: {path!r}")
    return path


def _text(state: dict[str, Any], key: str) -> str:
    value = state.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"container state: {key} is {_kind(value)}, not a string")
    return value


def _kind(value: object) -> str:
    """The name of a JSON type."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "an object"
