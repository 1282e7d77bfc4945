"""The process that becomes ldconfig: alone in its namespaces, with the container's tree as its only root.

Between fork and exec this is Python that must not import anything: once the root has changed, a module would be
loaded from the container. So everything is imported above, and the import system is switched off first thing.
One that was started in advance is Python until it waits: the rest is native/syscall/standby.c, where that was built.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys

from nvc.base.budgets import LDCONFIG
from nvc.linux import const, mounts_legacy, process, procfd, rights, seccomp, syscalls
from nvc.linux.fd import Fd
from nvc.linux.syscalls import SyscallError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from rpc.channel import Channel

#: (soft and hard) limits of libnvidia-container.md 7.2. Memory: real images take up to half of it, and a hostile one as
#: much as it gets. Address space: libraries are mapped one at a time, 2 GiB refuses some real ones
#: (libtensorflow_cc.so), so it is larger than the reference's.
_LIMITS = (
    (const.RLIMIT_CPU, LDCONFIG.cpu),
    (const.RLIMIT_DATA, LDCONFIG.memory),
    (const.RLIMIT_AS, 8 << 30),
    (const.RLIMIT_NOFILE, 64),
    (const.RLIMIT_FSIZE, LDCONFIG.file),
    (const.RLIMIT_CORE, 0),
)
_EARLY_NAMESPACES = const.CLONE_NEWNET | const.CLONE_NEWIPC | const.CLONE_NEWUTS
_HIDDEN = const.MS_NOSUID | const.MS_NODEV | const.MS_NOEXEC | const.MS_RDONLY
#: Of all that ldconfig sees. The container's device cgroup does not hold it, as it is no process of the container's:
#: a device node of the image would be opened with the host's rights.
RESTRICTED = const.MOUNT_ATTR_NOSUID | const.MOUNT_ATTR_NODEV | const.MOUNT_ATTR_NOEXEC
_HIDDEN_ATTRIBUTES = RESTRICTED | const.MOUNT_ATTR_RDONLY
#: What ldconfig needs beyond its user's rights: distributions ship /usr/lib without write permission for root.
_KEPT = frozenset((rights.CAP_DAC_OVERRIDE,))
#: Where the program's descriptor is, and the one to say what failed, when everything behind them is closed.
_PROGRAM, _REPORT = 3, 4
#: Its input: the owner's uid and gid, then the program's arguments, each with a null behind it.
_OWNER = struct.Struct("=II")
#: struct standby_orders and struct standby_range of native/syscall/standby.h.
_ORDERS, _RANGE = struct.Struct(f"=8iQ{2 * len(_LIMITS)}Q2Q"), struct.Struct("=2Q")


def packed(owner: tuple[int, int], arguments: tuple[str, ...]) -> bytes:
    """The request to go on."""
    return _OWNER.pack(*owner) + b"".join([os.fsencode(argument) + b"\0" for argument in arguments])


class Sandbox:
    """How to run one program.

    The process is started before the container's mounts are made, and does meanwhile what does not depend on them: its
    namespaces, of which that of the mounts has an empty, read-only file system as its only root by then, and the copy
    of the program. A message through ``end`` lets it go on (``Launched.go``); it ends when the other side is closed.

    other_end: of ``end``, which it must not hold. program: the program's file on the host, of which a sealed copy in
    memory is executed. root: the container's root directory, opened in the mount namespace that the process is in;
    None where the kernel can give it the container's tree later (``mounts.modern``). output, report: write ends of
    pipes for what the program prints, and for the one line that says which step before it failed. null: /dev/null,
    which the container's may not be. is_early: started before its request. proc: the parent's directory of /proc.
    """

    def __init__(
        self,
        *,
        end: Channel,
        other_end: Channel,
        program: Fd,
        root: Fd | None,
        no_pivot: bool,
        output: int,
        report: int,
        null: int,
        is_early: bool,
        proc: Fd,
    ) -> None:
        self.end = end
        self.other_end = other_end
        self.program = program
        self.root = root
        self.no_pivot = no_pivot
        self.output = output
        self.report = report
        self.null = null
        self.is_early = is_early
        self.proc = proc
        self.arguments: tuple[str, ...] = ()
        self.uid = self.gid = 0
        self._tree: Fd | None = None
        self._ground: Fd | None = None
        self._covers: list[tuple[str, Fd]] = []
        self._ranges = b""
        self._stack = 0, 0
        self._may_set_groups = False
        if is_early:
            # Here, as ``run`` can import nothing.
            from nvc.linux import memory

            self._memory = memory

    def leave_other_end(self) -> None:
        """Close the inherited other end, in every process forked for this: else the end is never seen."""
        self.other_end.close()

    def run(self) -> int:
        """Become the program. Runs in a forked child that is process 1 of a pid namespace; returns on failure only."""
        sys.meta_path.clear()
        for step, action in self._steps():
            try:
                action()
            except Exception as error:
                text = str(error) if isinstance(error, OSError) else repr(error)  # else it would end without a word
                os.write(self.report, f"{step}: {text}".encode("utf-8", "surrogateescape")[:4096])
                break
        return 1

    def _steps(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        first: tuple[tuple[str, Callable[[], None]], ...] = (
            ("process set-up failed", self._detach),
            ("namespaces", lambda: syscalls.unshare(_EARLY_NAMESPACES)),
            ("privilege change failed", _bound),
            ("memory allocation failed", self._copy),
        )
        last: tuple[tuple[str, Callable[[], None]], ...] = (
            ("resource limiting failed", _limit),
            ("privilege change failed", self._drop),
            ("syscall limiting failed", seccomp.install),
            ("exec", self._execute),
        )
        alone = ("namespaces", lambda: syscalls.unshare(const.CLONE_NEWNS))
        wait = ("process set-up failed", self._wait)
        if self.root is None:
            confine = "process confinement failed"
            early = (("process set-up failed", self._stand_by),) if self.is_early else ()
            return (*first, alone, (confine, self._stand), *early, wait, (confine, self._enter), *last)
        change = (("process confinement failed", self._change_root), ("process confinement failed", self._hide))
        return (*first, wait, alone, *change, *last)

    def _detach(self) -> None:
        self.leave_other_end()
        rights.set_name("nvc:[ldconfig]")
        # The parent is outside of this pid namespace: its number is 0 here.
        rights.parent_death_signal(0)
        os.dup2(self.null, 0)
        os.dup2(self.output, 1)
        os.dup2(self.output, 2)
        if self.is_early:
            # Its parent ends when the other side of each descriptor that it has open is closed.
            process.close_all_but(0, 1, 2, self.end.fileno(), self.report, self.program.fileno())
        if self.root is not None:
            # The working directory follows into the new mount namespace; a descriptor would stay in the old one.
            os.fchdir(self.root.fileno())

    def _copy(self) -> None:
        # A write after this is a write into the copy of this container: see sealed_copy.
        with self.program as source:
            self.program = process.sealed_copy(source, "ldconfig")
        seccomp.filter_of(seccomp.LDCONFIG)

    def _stand(self) -> None:
        """Have an empty root and nothing else, and at hand what will hide the container's own /proc, /sys and /dev."""
        if self.is_early:
            self._look()
        syscalls.mount(None, "/", None, const.MS_REC | const.MS_PRIVATE)
        # Before the root goes: in a user namespace a new procfs may show no more than one that is seen.
        self._covers = [("/proc", _new_proc()), ("/sys", _new("tmpfs")), ("/dev", _new("tmpfs"))]
        self._ground = _new("tmpfs")
        with Fd(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), "/") as here:
            syscalls.move_mount(self._ground, here)
        os.fchdir(self._ground.fileno())
        if not self.no_pivot:
            _pivot()
        os.chroot(".")
        os.chdir("/")

    def _look(self) -> None:
        """What ``_stand_by`` asks /proc, while there is one."""
        self._may_set_groups = _setgroups_allowed()
        try:
            found = self._memory.mappings()
        except OSError:
            return  # then it keeps its memory
        skipped = self._memory.SKIPPED
        self._ranges = b"".join(_RANGE.pack(one[0], one[1]) for one in found if not one[3].startswith(skipped))
        self._stack = next(((one[0], one[1]) for one in found if one[3] == "[stack]"), (0, 0))

    def _stand_by(self) -> None:
        """Wait, and go on, without this process's memory, so that no caller waits later for its release.

        Returns, and nothing has been done, where that cannot be.
        """
        assert self._ground is not None
        descriptors = (self.end.fileno(), self.report, self.program.fileno(), self._ground.fileno())
        covers = [cover.fileno() for _, cover in self._covers]
        limits = [number for limit in _LIMITS for number in limit]
        orders = _ORDERS.pack(*descriptors, *covers, self._may_set_groups, rights.mask(_KEPT), *limits, *self._stack)
        syscalls.standby(orders, seccomp.filter_of(seccomp.LDCONFIG), self._ranges)

    def _wait(self) -> None:
        received = self.end.receive()
        if received is None:
            os._exit(1)  # not wanted any more; the reader of a report may have gone
        request, descriptors = received
        self.uid, self.gid = _OWNER.unpack_from(request)
        self.arguments = tuple(os.fsdecode(word) for word in request[_OWNER.size :].split(b"\0")[:-1])
        if self.root is None:
            self._tree = Fd(descriptors.pop(0), "rootfs")
        if descriptors:
            self.program = Fd(descriptors.pop(0), "ldconfig")  # another than was copied: sealed already

    def _enter(self) -> None:
        """The container's tree on top of the empty root, which is all that lies below it."""
        assert self._tree is not None and self._ground is not None
        syscalls.move_mount(self._tree, self._ground)
        os.fchdir(self._tree.fileno())
        os.chroot(".")
        for path, cover in self._covers:
            _cover_with(cover, path)

    def _change_root(self) -> None:
        """For kernels without the mount API of ``nvc.linux.mounts``."""
        assert self.root is not None
        syscalls.mount(None, "/", None, const.MS_REC | const.MS_PRIVATE)
        with Fd(os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), "rootfs") as here:
            try:
                tree = syscalls.open_tree(here, recursive=True)
                syscalls.move_mount(tree, here)
            except SyscallError as error:
                if error.errno not in (errno.ENOSYS, errno.EPERM):
                    raise
                syscalls.mount(".", ".", None, const.MS_BIND | const.MS_REC)
                tree = Fd(os.open(self.root.name, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), self.root.name)
        with tree:
            procfd.inherit(self.proc)
            mounts_legacy.restrict(tree, RESTRICTED)
            os.fchdir(tree.fileno())
        if self.no_pivot:
            syscalls.mount(".", "/", None, const.MS_MOVE)
        else:
            _pivot()
        os.chroot(".")
        os.chdir("/")

    def _hide(self) -> None:
        if not _cover("proc", "/proc"):
            _cover("tmpfs", "/proc")
        for path in ("/sys", "/dev"):
            _cover("tmpfs", path)

    def _drop(self) -> None:
        groups = _setgroups_allowed()
        if self.uid != 0:
            try:
                # Without it the kernel takes the capabilities away with uid 0, DAC_OVERRIDE included.
                syscalls.prctl(const.PR_SET_SECUREBITS, const.SECBIT_NO_SETUID_FIXUP)
            except SyscallError as error:
                if error.errno != errno.EPERM:
                    raise
        rights.become(self.uid, self.gid, groups=groups)
        _, permitted, inheritable = syscalls.capget()
        kept = permitted & rights.mask(_KEPT)
        syscalls.capset(kept, kept, inheritable & kept)
        rights.no_new_privs()
        rights.parent_death_signal(0)  # changing ids cleared it
        # More may be open than the limit allows by now: only numbers below it can be had, whatever was there.
        spare = _REPORT + (2 if self.program.fileno() == _REPORT + 1 else 1)
        if self.report != spare:
            os.dup2(self.report, spare, inheritable=False)
        if self.program.fileno() != _PROGRAM:
            os.dup2(self.program.fileno(), _PROGRAM, inheritable=False)
        os.dup2(spare, _REPORT, inheritable=False)
        self.report = _REPORT
        process.close_from(_REPORT + 1)

    def _execute(self) -> NoReturn:
        os.execve(_PROGRAM, self.arguments, {})


def _pivot() -> None:
    """Have the working directory as the root, and what was the root away."""
    # The old root lands on top of the new one and is then what "." names: pivot_root(2), last note.
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", const.MNT_DETACH)


def _new(filesystem: str) -> Fd:
    """A detached mount of a new, read-only file system."""
    with syscalls.fsopen(filesystem) as context:
        syscalls.fsconfig_string(context, "source", filesystem)
        syscalls.fsconfig_flag(context, "ro")
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context, _HIDDEN_ATTRIBUTES)


def _new_proc() -> Fd:
    """A procfs of our own pid namespace, or an empty file system where none may be mounted."""
    try:
        return _new("proc")
    except SyscallError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EBUSY):
            raise
        return _new("tmpfs")


def _cover_with(mount: Fd, path: str) -> None:
    """Attach ``mount`` at ``path``, if that is a directory."""
    try:
        target = Fd(os.open(path, os.O_PATH | os.O_CLOEXEC), path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with target:
        if stat.S_ISDIR(target.stat().st_mode):
            syscalls.move_mount(mount, target)


def _bound() -> None:
    # In this order: what is not in the bounding set cannot become inheritable (cap_capset()).
    rights.set_inheritable(_KEPT, ambient=True)
    rights.empty_bounding()


def _cover(filesystem: str, path: str) -> bool:
    """Mount an empty or fresh file system on ``path``; True if that hides what was there, or nothing was there."""
    try:
        syscalls.mount(filesystem, path, filesystem, _HIDDEN)
    except SyscallError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return True
        # A user namespace may not mount a procfs when parts of the one it has are covered.
        if filesystem == "proc" and error.errno in (errno.EPERM, errno.EACCES, errno.EBUSY):
            return False
        raise
    return True


def _setgroups_allowed() -> bool:
    try:
        with Fd(os.open("/proc/self/setgroups", os.O_RDONLY | os.O_CLOEXEC)) as file:
            return os.read(file.fileno(), 16).strip() != b"deny"
    except OSError:
        return os.geteuid() == 0


def _limit() -> None:
    for kind, value in _LIMITS:
        limit = min(value, syscalls.prlimit(kind)[1])
        syscalls.prlimit(kind, (limit, limit))
