"""Starts and stops nvc-sim-manager, the resource manager behind a simulated machine's device nodes.

The manager serves files by FUSE in DIR/run/nvc-sim; each is bind-mounted over the node of its name in DIR/dev. It ends
when the connection does: by ``stop``, by the end of its last mount in any namespace, or with a signal.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
import time
from collections.abc import Sequence

from nvc.base.errors import DetectionError, InputError, MountError, PrivilegeError, reason
from nvc.linux import const, syscalls
from nvc.sim import MACHINE_FILE, templates
from nvc.sim import host as simulated_host

PLACE = "run/nvc-sim"
_START_SECONDS = 20.0
_STOP_SECONDS = 10.0
#: Passes over the list of mounts until it is empty.
_UNMOUNT_PASSES = 3


def start(directory: str, *, die_with_parent: bool = False) -> subprocess.Popen[bytes]:
    """Serve the nodes of the machine in ``directory``. Returns the manager's process, which runs on its own.

    die_with_parent: the manager ends when this thread does.
    Raises InputError (no machine, no nodes, served already), PrivilegeError, DetectionError (no program, no FUSE),
    MountError.
    """
    root = simulated_host(directory).root
    _check(root)
    place = os.path.join(root, PLACE)
    _clear_dead(root)
    if is_served(root):
        raise InputError(f"{directory} is served already", hint=f"nvc-py sim stop {directory}")
    nodes = [name for name in sorted(os.listdir(f"{root}/dev")) if name.startswith("nvidia")]
    if "nvidiactl" not in nodes:
        raise InputError(f"{directory} has no device nodes", hint="make it again as root: nvc-py sim create --force")
    try:
        os.makedirs(place, exist_ok=True)
    except OSError as error:
        raise MountError(f"{place}: {reason(error)}") from error
    manager = _launch(root, place, die_with_parent)
    try:
        for name in nodes:
            if os.path.exists(os.path.join(place, name)):
                syscalls.mount(os.path.join(place, name), f"{root}/dev/{name}", None, const.MS_BIND)
    except OSError as error:
        stop(directory)
        raise MountError(f"cannot serve the nodes of {directory}: {reason(error)}") from error
    return manager


def stop(directory: str) -> bool:
    """Unmount the served nodes; False when there were none.

    The manager ends, also for processes that have its files open (ENOTCONN) or copies of the mounts in other mount
    namespaces. Raises InputError, MountError.
    """
    root = simulated_host(directory).root
    mounted = _mounts(root)
    try:
        if mounted:
            _abort(mounted[0])
        # The list is read in pieces while others mount and unmount: it can have a line twice, or miss one.
        for place in (place for _ in range(_UNMOUNT_PASSES) for place in reversed(_mounts(root))):
            _detach(place)
    except OSError as error:
        raise MountError(f"cannot unmount the nodes of {directory}: {reason(error)}") from error
    if mounted:
        _remove(os.path.join(root, PLACE))
    return bool(mounted)


def run(directory: str, command: Sequence[str]) -> int:
    """Run a command while the nodes are served, in a mount namespace of this process's own; its exit code.

    A machine that is served already stays as it is. Raises what ``start`` raises, and InputError without the program.
    """
    root = simulated_host(directory).root
    manager = None
    if not is_served(root):
        _check(root)
        try:
            syscalls.unshare(const.CLONE_NEWNS)
            syscalls.mount(None, "/", None, const.MS_REC | const.MS_PRIVATE)
        except OSError as error:
            raise PrivilegeError(
                f"cannot create a mount namespace: {reason(error)}", hint="run this as root"
            ) from error
        manager = start(directory, die_with_parent=True)
    try:
        return subprocess.call(command)
    except OSError as error:
        raise InputError(f"{command[0]}: {reason(error)}") from error
    finally:
        if manager is not None:
            stop(directory)
            manager.terminate()
            manager.wait(_STOP_SECONDS)


def is_served(root: str) -> bool:
    """Whether a manager serves the nodes of the machine at ``root``."""
    try:
        return os.path.join(root, PLACE) in _mounts(root) and bool(os.listdir(os.path.join(root, PLACE)))
    except OSError:
        return False


def _check(root: str) -> None:
    if os.geteuid() != 0:
        raise PrivilegeError("serving device nodes needs root", hint="sudo nvc-py sim start DIR")
    if not os.path.exists("/dev/fuse"):
        raise DetectionError(
            "/dev/fuse does not exist", hint="modprobe fuse; in a container, give it the device /dev/fuse"
        )
    templates.find(templates.MANAGER)


def _launch(root: str, place: str, die_with_parent: bool) -> subprocess.Popen[bytes]:
    ready, write_end = os.pipe()
    words = [templates.find(templates.MANAGER), "--ready-fd", str(write_end)]
    words += ["--die-with-parent"] if die_with_parent else []
    try:
        manager = subprocess.Popen(
            [*words, os.path.join(root, MACHINE_FILE), place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[write_end],
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        os.close(ready)
        raise DetectionError(f"{words[0]}: {reason(error)}", hint="build it with `make native`") from error
    finally:
        os.close(write_end)
    assert manager.stderr is not None
    with open(ready, "rb", buffering=0) as pipe, manager.stderr as said:
        heard, _, _ = select.select([pipe], [], [], _START_SECONDS)
        if heard and pipe.read(1):
            return manager
        manager.kill()
        manager.wait(_STOP_SECONDS)
        words = said.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
    raise DetectionError(words[-1] if heard else f"nvc-sim-manager was not ready within {_START_SECONDS:g} s")


def _clear_dead(root: str) -> None:
    """Unmount what a manager that was killed left behind."""
    mounted = _mounts(root)
    if mounted and not is_served(root):
        stop(root)


def _mounts(root: str) -> list[str]:
    """Mount points of managers' files below ``root``, in the order in which they were made."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields, _, rest = line.partition(" - ")
            point = fields.split()[4].encode("latin-1", "backslashreplace").decode("unicode_escape")
            if rest.startswith("fuse.nvc-sim-manager ") and point.startswith(root + "/"):
                found.append(point)
    return found


def _abort(place: str) -> None:
    """Abort the FUSE connection of a mount and of its copies; the mount is removed too, unless it is in use."""
    try:
        syscalls.umount2(place, const.MNT_FORCE)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EINVAL):
            raise


def _detach(place: str) -> None:
    try:
        syscalls.umount2(place, const.MNT_DETACH)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not a mount any more
            raise


def _remove(place: str) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            os.rmdir(place)
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
        else:
            return
