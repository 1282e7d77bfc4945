"""Apply a plan to a container: everything, or nothing.

1. On the host: make the files of a share; open every source once, below the driver root, check what it is, clone it
   and restrict the clone before it is attached; open the cgroup; copy ldconfig.
2. In the container's mount namespace: open its root, make targets below it, attach; links; ldconfig, and while it runs
   what it does not read: nodes, sockets, files of /proc, cgroup rules.
3. On any failure, also a signal, undo everything, last first. Then return to the caller's namespace.

A plan may come in two parts: what ldconfig may depend on is applied while NVML is initialised, the rest when the GPU
is known.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.errors import LdcacheError, MountError, NvcError, reason
from nvc.base.undo import Undo
from nvc.container import execute
from nvc.container.execute import ATTRIBUTES, EXECUTORS, Place
from nvc.container.ldcache import update
from nvc.container.ldcache.program import open_program
from nvc.container.namespace import MountNamespace
from nvc.container.operations import (
    DEVICE,
    DIRECTORY,
    REGULAR,
    AllowDevices,
    BindMount,
    EndpointMount,
    ShareFiles,
    UpdateLdcache,
    is_independent,
)
from nvc.container.propagation import Propagation
from nvc.linux import cgroup, mounts, owned, rights
from nvc.linux.fd import Fd
from nvc.linux.root import Root
from rpc.stop import Deferred, limit_undo, undone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nvc.base.log import Log
    from nvc.container.ldcache.process import Launched
    from nvc.container.lookup import Located
    from nvc.container.operations import Operation
    from nvc.linux.tree import Tree
    from nvc.model import CgroupRef

    Step = tuple[Operation, Fd | None]
    Later = Callable[[], list[Step]] | None

_OWNER_HINT = "give the link, and the directory that it is in, to root, or replace it by what it leads to"
_SOURCE_HINT = "the driver on the host changed; if it was just updated, run with --no-cache"


class Prepared:
    """What was opened on the host: a source for each BindMount, the cgroup directory, the ldconfig program.

    done: how many operations changed the host already.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.done = 0

    def close(self) -> None:
        """Close everything; the kernel frees clones that were not attached."""
        for _, opened in self.steps:
            if opened is not None:
                opened.close()


def apply(
    located: Located,
    driver_root: str,
    operations: Iterable[Operation],
    log: Log,
    rest: Callable[[], Iterable[Operation]] | None = None,
) -> int:
    """Apply ``operations``; returns the number of those that changed something.

    rest: waits for independent operations (``is_independent``) that are to be applied too; what it raises undoes all.
    Must run in a process with one thread. Raises MountError, LdcacheError, ContainerError; all
    changes are then undone.
    """
    rights.use("mount")
    host = Undo()
    try:
        prepared = prepare(located, driver_root, operations, host, log)
        added: list[Prepared] = []

        def later() -> list[Step]:
            assert rest is not None
            known = tuple(rest())
            if not all(map(is_independent, known)):
                raise MountError("invalid argument: an operation that ldconfig may depend on, after its start")
            added.append(prepare(located, driver_root, known, host, log))
            return added[0].steps

        try:
            done = _inside(located, prepared, log, later if rest is not None else None)
        finally:
            for one in (prepared, *added):
                one.close()
    except BaseException:
        _rollback(host, log)
        raise
    host.commit()
    return done


def _inside(located: Located, prepared: Prepared, log: Log, later: Later) -> int:
    """The container's half: all or nothing. later: called on the host, in the middle of it."""
    propagation = Propagation(foreign=located.namespace is not None or is_foreign(), log=log)
    with MountNamespace(located.namespace) as inside, Undo() as undo:
        try:
            away = (lambda: inside.away(later)) if later is not None else None
            done = _execute(located, prepared, undo, propagation, log, away)
        except BaseException:
            # The first step, as one that fails keeps no other from its end.
            undo.push_urgent(inside.enter)
            _rollback(undo, log)
            raise
        undo.commit()
        return done


def _rollback(undo: Undo, log: Log) -> None:
    with Deferred(firm=True):
        limit_undo()
        for problem in undo.rollback():
            log.error(f"while undoing: {problem}")
        undone()


def prepare(located: Located, driver_root: str, operations: Iterable[Operation], host: Undo, log: Log) -> Prepared:
    """The host's half. host: undoes what is made on the host. Raises MountError, LdcacheError."""
    prepared = Prepared()
    try:
        with Root.open(driver_root) as root:
            sources = owned.Sources(root.fd)
            for operation in operations:
                opened: Fd | None = None
                if isinstance(operation, ShareFiles):
                    _make_files(operation, located, prepared, host, log)
                    continue
                if isinstance(operation, BindMount):
                    opened = _source(root, sources, operation, log)
                    if opened is None:
                        continue
                elif isinstance(operation, AllowDevices):
                    opened = _cgroup(located)
                elif isinstance(operation, UpdateLdcache):
                    opened = open_program(operation.ldconfig)
                prepared.steps.append((operation, opened))
    except NvcError:
        prepared.close()
        raise
    except OSError as error:
        prepared.close()
        raise MountError(f"open failed: {driver_root}: {reason(error)}", hint="--root must exist") from error
    return prepared


def _source(root: Root, sources: owned.Sources, operation: BindMount, log: Log) -> Tree | None:
    """The restricted clone of a host file of the right kind; None when it is optional and not there."""
    path = operation.host_path
    try:
        opened = _open_source(root, sources, operation)
    except owned.Untrusted as error:
        if operation.optional:
            log.warn(f"{path} is not given to the container: {error.text}")
            return None
        raise MountError(f"path error: {path}: {error.text}", hint=_OWNER_HINT) from error
    except OSError as error:
        if operation.optional:
            log.warn(f"missing {path}: {reason(error)}")
            return None
        hint = "" if error.errno == errno.EACCES else _SOURCE_HINT
        raise MountError(f"stat failed: {path}: {reason(error)}", hint=hint) from error
    with opened:
        _check_kind(operation, opened.stat())
        try:
            tree = mounts.clone(opened)
            mounts.restrict(tree, sum(ATTRIBUTES[word] for word in operation.attributes))
        except OSError as error:
            raise execute.failure("mount operation", path, error) from error
    return tree


def _open_source(root: Root, sources: owned.Sources, operation: BindMount) -> Fd:
    """What is to be mounted, pinned: all that is done with it from here on is done with this descriptor."""
    if isinstance(operation, EndpointMount):
        return owned.endpoint(root.fd, operation.host_path, operation.owners, operation.server).file
    if operation.own:
        with Root.open("/") as host:
            return host.resolve(operation.host_path)
    return sources.open(operation.host_path)


def _make_files(operation: ShareFiles, located: Located, prepared: Prepared, host: Undo, log: Log) -> None:
    # Imported for containers with a share only.
    from nvc.container import share_files

    with Deferred():
        prepared.done += share_files.make(operation, located, host, log)


def _check_kind(operation: BindMount, found: os.stat_result) -> None:
    path, mode = operation.host_path, found.st_mode
    if operation.source == DEVICE:
        number = os.major(found.st_rdev), os.minor(found.st_rdev)
        if not stat.S_ISCHR(mode) or number != (operation.major, operation.minor):
            raise MountError(
                f"invalid device node: {path}",
                hint=f"expected character device {operation.major}:{operation.minor}; nvidia-modprobe makes the nodes",
            )
        return
    if operation.source == REGULAR:
        good = stat.S_ISREG(mode)
    elif operation.source == DIRECTORY:
        good = stat.S_ISDIR(mode)
    else:
        good = stat.S_ISSOCK(mode) or stat.S_ISDIR(mode)
    if not good:
        raise MountError(f"unexpected source file mode {mode:o} for {path}", hint=_SOURCE_HINT)


def _cgroup(located: Located) -> Fd:
    found = located.container.cgroup
    if found is None:
        raise MountError("failed to add device rules: the container's cgroup was not looked up")
    try:
        if found.private is not None:
            return cgroup.open_private(found.version, found.path, found.private)
        return cgroup.open_directory(found.path)
    except OSError as error:
        hint = "use a prestart or createRuntime hook, which is not in the container's cgroup namespace"
        raise MountError(
            f"failed to add device rules: {found.path}: {reason(error)}", hint=hint if found.private is not None else ""
        ) from error


def is_foreign() -> bool | None:
    """Whether this process is in another mount namespace than pid 1, as a createContainer hook is. None if unknown."""
    try:
        ours, first = os.stat("/proc/self/ns/mnt"), os.stat("/proc/1/ns/mnt")
    except OSError:
        return None
    return (ours.st_dev, ours.st_ino) != (first.st_dev, first.st_ino)


def _execute(located: Located, prepared: Prepared, undo: Undo, propagation: Propagation, log: Log, later: Later) -> int:
    container = located.container
    owner = container.owner_uid, container.owner_gid
    # After entering: move_mount refuses targets below a descriptor of another mount namespace.
    with _open_root(located) as root:
        place = Place(root, owner, undo, propagation, log)
        launched: dict[UpdateLdcache, Launched] = {}
        try:
            for operation, opened in prepared.steps:
                if isinstance(operation, UpdateLdcache) and opened is not None:
                    with Deferred():
                        update.remember(operation, place)
                        launched[operation] = update.launch(operation, place, opened)
            done = _steps(prepared, place, container.cgroup, launched, later)
            # Together: a signal between the two would take back all but the cache.
            with Deferred():
                update.publish(place)
                undo.commit()
            return done
        finally:
            for started in launched.values():
                started.close()


def _steps(
    prepared: Prepared,
    place: Place,
    group: CgroupRef | None,
    launched: Mapping[UpdateLdcache, Launched],
    later: Later,
) -> int:
    done = prepared.done
    for operation, opened, is_beginning in _interleaved(prepared.steps, later):
        # A Stop between a mount and its undo entry would leave the mount behind.
        with Deferred():
            if isinstance(operation, AllowDevices):
                assert opened is not None and group is not None
                changed = execute.allow_devices(operation, place, group.version, opened)
            elif is_beginning and isinstance(operation, UpdateLdcache):
                assert opened is not None
                update.begin(operation, place, launched[operation], opened)
                continue
            elif isinstance(operation, UpdateLdcache):
                changed = update.finish(operation, place, launched[operation])
            else:
                changed = EXECUTORS[type(operation)](operation, place, opened)
        done += changed
        if not changed and place.log.enabled:
            place.log.info(f"already in effect: {operation.describe()}")
    return done


def _interleaved(steps: Iterable[Step], later: Later = None) -> Iterator[tuple[Operation, Fd | None, bool]]:
    """The steps, and the start of each update of the cache: (operation, source, is this the start).

    In the plan's order, except that the steps before an update that ldconfig cannot see are done while it runs. later:
    returns more of those, as late as can be.
    """
    before: list[Step] = []
    for step in steps:
        if not isinstance(step[0], UpdateLdcache):
            before.append(step)
            continue
        yield from ((*one, False) for one in before if not is_independent(one[0]))
        waiting = [one for one in before if is_independent(one[0])]
        before.clear()
        yield (*step, True)
        yield from ((*one, False) for one in waiting)
        if later is not None:
            yield from ((*one, False) for one in later())
            later = None
        yield (*step, False)
    yield from ((*one, False) for one in before)
    if later is not None:
        yield from ((*one, False) for one in later())


def _open_root(located: Located) -> Root:
    rootfs = located.container.rootfs
    try:
        root = Root.open(rootfs)
        status = root.fd.stat()
    except OSError as error:
        raise MountError(f"open failed: {rootfs}: {reason(error)}") from error
    if (status.st_dev, status.st_ino) != located.rootfs:
        root.close()
        raise MountError(
            f"path error: {rootfs}: replaced by another directory since it was looked up",
            hint="another process replaces the container's root during configuration",
        )
    return root


__all__ = ["MountNamespace", "LdcacheError", "Prepared", "apply", "prepare"]
