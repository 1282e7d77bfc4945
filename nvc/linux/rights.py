"""Linux capabilities by phase, and the other rights that a process drops.

``RIGHTS`` is the one table: which phase holds which capability, and why. A capability that the process never had is
left out silently everywhere here: root without CAP_SYS_RESOURCE, or root of a user namespace, goes as far as the
kernel lets it and fails at the call that needs more, where the message can name the thing.
"""

from __future__ import annotations

import errno
import os
import sys

from nvc.linux import const, syscalls
from nvc.linux.syscalls import SyscallError

# linux/capability.h
CAP_CHOWN = 0
CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_FOWNER = 3
CAP_KILL = 5
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SETPCAP = 8
CAP_NET_ADMIN = 12
CAP_SYS_MODULE = 16
CAP_SYS_CHROOT = 18
CAP_SYS_PTRACE = 19
CAP_SYS_ADMIN = 21
CAP_MKNOD = 27

_END_HELPERS = "end a helper that hangs, also after it changed its uid"
_ENTER = "fchdir and pivot_root into the container's root, and setns into its mount namespace"
_IDENTITY = "make files as the container's owner; give up root's ids"
_READ_PROC = "open /proc/PID/ns/* and /proc/PID/root of the container"
_SEARCH = "pass directories that the container's owner alone may search"

#: Phase -> ((capability, why it is needed), ...). The sets are the reference's (libnvidia-container.md 5.9).
RIGHTS: dict[str, tuple[tuple[int, str], ...]] = {
    "init": (
        (CAP_KILL, _END_HELPERS),
        (CAP_SETUID, "the driver service changes to the user of its request"),
        (CAP_SETGID, "the driver service changes to the group of its request"),
        (CAP_SYS_CHROOT, "the driver service enters the driver root"),
    ),
    "init_kmods": (
        (CAP_KILL, _END_HELPERS),
        (CAP_SETUID, "the driver service changes to the user of its request"),
        (CAP_SETGID, "the driver service changes to the group of its request"),
        (CAP_SYS_CHROOT, "the driver service and modprobe enter the driver root"),
        (CAP_CHOWN, "give device nodes the owner that the driver's parameters name"),
        (CAP_FOWNER, "give device nodes the mode that the driver's parameters name"),
        (CAP_MKNOD, "make the device nodes"),
        (CAP_SETPCAP, "leave modprobe the bounding set it needs and nothing else"),
    ),
    "container": (
        (CAP_KILL, _END_HELPERS),
        (CAP_DAC_READ_SEARCH, "read a rootfs whose owner shut others out"),
        (CAP_SYS_PTRACE, _READ_PROC),
    ),
    "info": ((CAP_KILL, _END_HELPERS),),
    "shutdown": ((CAP_KILL, _END_HELPERS),),
    "mount": (
        (CAP_KILL, _END_HELPERS),
        (CAP_NET_ADMIN, "query and attach the cgroup's device program (bpf)"),
        (CAP_SETUID, _IDENTITY),
        (CAP_SETGID, _IDENTITY),
        (CAP_SYS_CHROOT, "setns into a mount namespace demands it"),
        (CAP_SYS_ADMIN, "mount, setns, read and load device programs (bpf)"),
        (CAP_DAC_READ_SEARCH, _SEARCH),
        (CAP_SYS_PTRACE, _READ_PROC),
        (CAP_DAC_OVERRIDE, "make mount points in directories of the container's owner; write devices.allow"),
    ),
    "ldcache": (
        (CAP_KILL, _END_HELPERS),
        (CAP_SETUID, "ldconfig runs as the container's owner"),
        (CAP_SETGID, "ldconfig runs as the container's owner"),
        (CAP_SYS_CHROOT, _ENTER),
        (CAP_SYS_ADMIN, "make the namespaces and mounts of the sandbox"),
        (CAP_DAC_READ_SEARCH, _SEARCH),
        (CAP_SYS_PTRACE, _READ_PROC),
        (CAP_SETPCAP, "empty the bounding set before ldconfig is executed"),
    ),
}

#: The permitted set of a helper: everything that a phase needs.
PERMITTED = frozenset(capability for rows in RIGHTS.values() for capability, _ in rows)
#: What an executed program may get back: modprobe loads modules, and reads them with any owner.
BOUNDING = frozenset((CAP_DAC_OVERRIDE, CAP_SYS_MODULE))


def mask(capabilities: frozenset[int]) -> int:
    """The capabilities as a bit mask."""
    return sum(1 << capability for capability in capabilities)


def of_phase(phase: str) -> frozenset[int]:
    """The capabilities of ``phase``. Raises KeyError for a phase that is not in the table."""
    return frozenset(capability for capability, _ in RIGHTS[phase])


def reduce_permitted() -> None:
    """Keep the permitted set of the table, an empty inheritable and ambient set, and the bounding set of the table."""
    effective, permitted, _ = syscalls.capget()
    _bound(BOUNDING)
    keep = permitted & mask(PERMITTED)
    # An empty inheritable set empties the ambient set too (cap_capset() in security/commoncap.c).
    syscalls.capset(effective & keep, keep, 0)


def use(phase: str) -> None:
    """Make the effective set that of ``phase``, as far as it is permitted. Raises KeyError for an unknown phase."""
    _, permitted, inheritable = syscalls.capget()
    syscalls.capset(permitted & mask(of_phase(phase)), permitted, inheritable)


def drop_all(*, bounding: bool = True) -> None:
    """Drop every capability for good; with ``bounding`` (where SETPCAP allows) for programs executed later too."""
    if bounding:
        _bound(frozenset())
    syscalls.capset(0, 0, 0)


def keep_only(capabilities: frozenset[int]) -> None:
    """Keep these (of those permitted) for good, and none for programs executed later."""
    _bound(frozenset())
    _, permitted, _ = syscalls.capget()
    keep = permitted & mask(capabilities)
    syscalls.capset(keep, keep, 0)


def set_inheritable(capabilities: frozenset[int], *, ambient: bool = False) -> None:
    """Let programs executed later inherit ``capabilities`` (those permitted); with ``ambient`` also a non-root user's.

    A refusal leaves them out: the reference tolerates it, the program then works with its user's rights.
    """
    effective, permitted, _ = syscalls.capget()
    try:
        syscalls.capset(effective, permitted, permitted & mask(capabilities))
    except SyscallError as error:
        if error.errno != errno.EPERM:
            raise
        return
    for capability in sorted(capabilities if ambient else frozenset()):
        try:
            syscalls.prctl(const.PR_CAP_AMBIENT, const.PR_CAP_AMBIENT_RAISE, capability)
        except SyscallError as error:
            if error.errno not in (errno.EPERM, errno.EINVAL):
                raise


def empty_bounding() -> None:
    """Empty the bounding set: a program executed later gets no capability that it does not inherit."""
    _bound(frozenset())


def _bound(keep: frozenset[int]) -> None:
    """Drop all but ``keep`` from the bounding set; without SETPCAP (an ordinary user) it stays as it is."""
    effective, permitted, inheritable = syscalls.capget()
    if not permitted & 1 << CAP_SETPCAP:
        return
    syscalls.capset(effective | 1 << CAP_SETPCAP, permitted, inheritable)
    try:
        capability = 0
        # Dropping what is not in the set is no error, and EINVAL means that the last capability of the kernel was
        # before: no query is needed.
        while capability in keep or _dropped(capability):
            capability += 1
    finally:
        syscalls.capset(effective, permitted, inheritable)


def _dropped(capability: int) -> bool:
    """Take it out of the bounding set; False for a capability that the kernel does not know."""
    try:
        syscalls.prctl(const.PR_CAPBSET_DROP, capability)
    except SyscallError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


class Owner:
    """While entered, files are made as ``uid``:``gid``: the file-system ids of the process are theirs.

    Two things the kernel does on the way are taken back (kernel/cred.c, security/commoncap.c): a file-system uid
    other than 0 takes the file capabilities out of the effective set, and DAC_OVERRIDE is needed to work in
    directories of other owners; any change of these ids clears the parent-death signal.
    """

    __slots__ = ("_before", "_effective", "_gid", "_signal", "_uid")

    def __init__(self, uid: int, gid: int) -> None:
        self._uid, self._gid = uid, gid
        self._before: tuple[int, int] | None = None
        self._effective = 0
        self._signal = 0

    def __enter__(self) -> None:
        before = syscalls.setfsuid(-1), syscalls.setfsgid(-1)
        if before == (self._uid, self._gid):
            return
        self._effective, permitted, inheritable = syscalls.capget()
        self._signal = _death_signal()
        self._before = before
        try:
            _set_file_ids(self._uid, self._gid)
            # Under another uid only the capabilities to pass directories stay, and only if they were effective before.
            through = mask(frozenset((CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH))) | ~_FILE_CAPABILITIES
            keep = self._effective & (through if self._uid else -1)
            syscalls.capset(keep, permitted, inheritable)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        before = self._before
        if before is None:
            return
        self._before = None
        _set_file_ids(*before)
        permitted, inheritable = syscalls.capget()[1:]
        # Back at uid 0 every permitted file capability is effective, which is more than the phase had.
        syscalls.capset(self._effective & permitted, permitted, inheritable)
        if self._signal:
            syscalls.prctl(const.PR_SET_PDEATHSIG, self._signal)


#: CAP_FS_SET of kernel/include/linux/capability.h: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID,
#: LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
_FILE_CAPABILITIES = sum(1 << bit for bit in (0, 1, 2, 3, 4, 9, 27, 32))


def _set_file_ids(uid: int, gid: int) -> None:
    # The group first: without CAP_SETGID of uid 0 it could not be changed any more.
    syscalls.setfsgid(gid)
    syscalls.setfsuid(uid)
    now = syscalls.setfsuid(-1), syscalls.setfsgid(-1)
    if now != (uid, gid):
        # Not permitted, or ids that this user namespace does not map.
        raise SyscallError(errno.EPERM, "setfsuid", uid, gid)


def _death_signal() -> int:
    number = bytearray(4)  # an int
    syscalls.prctl_buffer(const.PR_GET_PDEATHSIG, number)
    return int.from_bytes(number, sys.byteorder)


def parent_death_signal(expected_parent: int, signal: int = 9) -> None:
    """Have the kernel send ``signal`` when the parent ends.

    Raises ProcessLookupError when ``expected_parent`` (taken before fork) is no longer the parent: it ended before
    the signal was asked for, and the caller should end too. Changing ids later clears it: ask again then.
    """
    syscalls.prctl(const.PR_SET_PDEATHSIG, signal)
    if os.getppid() != expected_parent:
        raise ProcessLookupError(errno.ESRCH, "the parent process has ended")


def no_new_privs() -> None:
    """Set no_new_privs: executing a program cannot add privileges any more."""
    syscalls.prctl(const.PR_SET_NO_NEW_PRIVS, 1)


def set_name(text: str) -> None:
    """Name the process as ps shows it; the kernel keeps 15 bytes."""
    syscalls.prctl_buffer(const.PR_SET_NAME, os.fsencode(text)[:15])


def become(uid: int, gid: int, *, groups: bool = True) -> None:
    """Change all ids for good to ``uid``:``gid``; with ``groups`` the supplementary groups become [gid].

    Pass groups=False where /proc/self/setgroups says "deny". Raises OSError (EPERM, EINVAL).
    """
    if groups and os.getgroups() not in ([], [gid]):
        os.setgroups([gid])
    if os.getresgid() != (gid, gid, gid):
        os.setresgid(gid, gid, gid)
    if os.getresuid() != (uid, uid, uid):
        os.setresuid(uid, uid, uid)


def in_user_namespace() -> bool:
    """Whether this process is in a user namespace other than the first: /proc/self/uid_map maps not all to itself."""
    try:
        number = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # a kernel without user namespaces
    try:
        return os.read(number, 4096).split() != [b"0", b"0", b"4294967295"]
    finally:
        os.close(number)
