"""Allows the driver's nodes in a container's device cgroup during a query of NVML from inside it.

A createContainer hook is in the container's cgroup already, which denies every device that config.json does not list:
NVML cannot open /dev/nvidiactl and returns "unknown error" (measured: runc 1.1.5, v1 and v2), or it can and leaves out
the GPUs that the container was not given: other containers would get such an inventory from the cache. So the driver's
nodes are allowed for the duration of the query. No process of the container runs at that stage: the cgroup has the
runtime's first process and this hook.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.errors import InitializationError, MountError, reason
from nvc.linux import cgroup, rights
from nvc.model import DXG_NODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.base.log import Log
    from nvc.base.undo import Undo
    from nvc.linux.fd import Fd
    from nvc.model import Host

#: One of them exists: that of NVIDIA's driver, or WSL's.
CONTROL_NODES = ("/dev/nvidiactl", DXG_NODE)
_DIRECTORIES = ("/dev", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")
_HINT = "use a prestart or createRuntime hook: those run outside of the container's cgroup"


def reach(host: Host, undo: Undo, log: Log) -> bool:
    """Allow the driver's nodes for this process and its children; ``undo`` gets the entry that reverts it.

    False when they are allowed, or when there is no driver, and in a user namespace that may use NVML. Raises
    InitializationError without the right to do it.
    """
    nodes = host.nodes.rstrip("/")
    is_denied = any(_denied(nodes + node) for node in CONTROL_NODES)
    in_user_namespace = rights.in_user_namespace()
    if not is_denied and (in_user_namespace or not _hidden(nodes)):
        return False
    if in_user_namespace:
        raise InitializationError(
            "the device cgroup of the container denies the driver's nodes to this createContainer hook, "
            "and a process in a user namespace may not change it",
            hint=_HINT,
        )
    rules = sorted(set(_numbers(nodes)))
    try:
        version, directory = _own()
        with directory:
            cgroup.allow(version, directory, rules, undo)
    except (OSError, ValueError, MountError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise InitializationError(
            f"the device cgroup of the container denies the driver's nodes to this createContainer hook: {why}",
            hint=_HINT,
        ) from error
    log.info(f"allowed {len(rules)} nodes in the container's device cgroup for the query of NVML")
    return True


def _denied(path: str) -> bool:
    """Whether the device cgroup refuses: EPERM, where a mode or a nodev mount would be EACCES."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError as error:
        return error.errno == errno.EPERM
    return False


def _hidden(root: str) -> bool:
    """Whether the device cgroup refuses a GPU's node. access(2) asks it too, and opens nothing: that starts a GPU."""
    place = f"{root}/dev"
    try:
        names = [name for name in os.listdir(place) if name.startswith("nvidia") and name[6:].isdecimal()]
    except OSError:
        return False
    return not all(os.access(f"{place}/{name}", os.R_OK | os.W_OK) for name in names)


def _numbers(root: str) -> Iterator[tuple[int, int]]:
    for directory in _DIRECTORIES:
        try:
            names = os.listdir(root + directory)
        except OSError:
            continue
        for name in names:
            status = os.lstat(f"{root}{directory}/{name}")
            if stat.S_ISCHR(status.st_mode) and (name.startswith(("nvidia", "dxg")) or directory != "/dev"):
                yield os.major(status.st_rdev), os.minor(status.st_rdev)


def _own() -> tuple[int, Fd]:
    # The pid in this /proc, which is the host's in a createContainer hook; getpid() is the container's.
    own = int(os.readlink("/proc/self"))
    try:
        version, path = cgroup.find(proc_root="/", pid=own, mount_pid=own)
    except cgroup.PrivateNamespace as found:
        return found.version, cgroup.open_private(found.version, found.place, found.controllers)
    return version, cgroup.open_directory(path)
