"""Entry into the namespaces of a process.

A process that entered a mount namespace does not come back: helpers are forked for it. It must have one thread, and
every descriptor that is a *mount target* must be opened after entering (move_mount answers EINVAL otherwise).
"""

from __future__ import annotations

import os

from nvc.linux import const, procfd, syscalls
from nvc.linux.fd import Fd

#: Name below /proc/PID/ns -> its CLONE_NEW* flag.
KINDS = {
    "cgroup": const.CLONE_NEWCGROUP,
    "ipc": const.CLONE_NEWIPC,
    "mnt": const.CLONE_NEWNS,
    "net": const.CLONE_NEWNET,
    "pid": const.CLONE_NEWPID,
    "user": const.CLONE_NEWUSER,
    "uts": const.CLONE_NEWUTS,
}


def enter(namespace: str | Fd, kind: str) -> None:
    """Enter ``namespace`` (a path or a descriptor); ``kind`` as in ``KINDS``.

    Raises OSError: EACCES or EPERM without CAP_SYS_PTRACE over the process or CAP_SYS_ADMIN over the namespace,
    EINVAL with threads, with a descriptor of another kind, or for the user namespace that the process is in.
    Entering a user namespace gives the full capability set inside it; ``mnt`` puts the root and working directory
    at the namespace's root.
    """
    # While /proc is still the host's: see procfd.
    try:
        procfd.pin()
    except OSError:
        pass  # no /proc here: only the calls that need it will fail
    if isinstance(namespace, Fd):
        syscalls.setns(namespace, KINDS[kind])
        return
    with syscalls.open_path(namespace, os.O_RDONLY) as opened:
        syscalls.setns(opened, KINDS[kind])
