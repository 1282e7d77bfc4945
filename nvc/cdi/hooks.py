"""What the hooks of a CDI spec do to a container, from inside its mount namespace (stage createContainer).

The same code as ``configure``'s: paths below the root are descriptors (``nvc.linux.root``), nothing of the image is
executed or mounted (``nvc.container.ldcache.update``), and file systems of our own come from
``nvc.container.execute``. Each function may be
called twice.
"""

from __future__ import annotations

import errno
import os
import stat

from nvc.base.budgets import TIMEOUT_S
from nvc.base.errors import InputError, MountError, reason
from nvc.base.record import Record
from nvc.cdi import loaderconf
from nvc.cdi.below import Below
from nvc.cdi.given import given, minor_of, number
from nvc.cdi.procfile import cover
from nvc.container.apply import apply
from nvc.container.compat import usable
from nvc.container.lookup import compat_library, inspect, open_rootfs
from nvc.container.messages import ContainerConfig, InspectRequest
from nvc.container.operations import ApplicationProfile, Tmpfs, UpdateLdcache
from nvc.container.plan import SIMULATED_PROC
from nvc.linux import procfd, rights
from nvc.linux.root import Root
from nvc.model import Host, Selection
from nvc.request.injection import ShareRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from nvc.base.log import Log
    from nvc.container.lookup import Located
    from nvc.container.operations import Operation

_PARAMS = "/proc/driver/nvidia/params"


class HookTarget(Record):
    """The container.

    rootfs: absolute path of its root, in our own mount namespace. timeout: seconds, of every wait. identifier: the
    runtime's, or "". share: the annotation that asks for a share, or "". environment: the container's, for a share.
    bundle, seccomp, guard_off, fixed, name: as in ``nvc.request.injection.ShareRequest``. config: config.json,
    {} where it was not to be read.
    """

    rootfs: str
    timeout: float = TIMEOUT_S
    identifier: str = ""
    share: str = ""
    environment: dict[str, str] = {}
    bundle: str = ""
    seccomp: dict[str, Any] = {}
    guard_off: bool = False
    config: dict[str, Any] = {}
    fixed: tuple[str, ...] = ()
    name: str = ""


def prepare() -> None:
    """Before any of the others: keep the rights that mounting needs and no more."""
    procfd.pin()
    rights.reduce_permitted()
    rights.use("mount")


def create_symlinks(target: HookTarget, links: Sequence[tuple[str, str]], log: Log) -> int:
    """Make links, (path, text) each; what has the name is replaced. The number of those made. Raises MountError."""
    with _open(target) as root:
        below = _below(root)
        made = sum(below.link(path, text) for path, text in dict.fromkeys(links))
    log.info(f"create-symlinks: {made} of {len(links)} made")
    return made


def update_ldcache(
    target: HookTarget,
    folders: Sequence[str],
    ldconfig: str,
    log: Log,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Make the loader find libraries in ``folders``. ldconfig: the host's program, "" for the usual one.

    meanwhile: called while ldconfig runs, if it could be started: what it raises takes the update back. Raises
    MountError, LdcacheError.
    """
    located = _locate(target, log, ldconfig=ldconfig)
    with _open(target) as root:
        extra = loaderconf.add_folders(_below(root), folders)
    operation = UpdateLdcache(located.container.ldconfig, extra, limit=target.timeout)

    def rest() -> tuple[Operation, ...]:
        if meanwhile is not None:
            meanwhile()
        return ()

    apply(located, "/", (operation,), log, rest)


def enable_cuda_compat(target: HookTarget, driver: str, cuda: str, directory: str, log: Log) -> bool:
    """Make the loader prefer the image's CUDA compat libraries, if they are for this driver. True if they are.

    driver, cuda: versions of the host, "" when not known. directory: where the image has them. Nothing of the image is
    mounted or executed; it is the container's own loader that will find them.
    """
    if not directory.startswith("/"):
        raise InputError(f"{directory!r} is not an absolute path")
    with _open(target) as root:
        library = compat_library(root, directory, log)
        wanted = library is not None and usable(library, driver, cuda)
        log.info(f"enable-cuda-compat: {library!r} with driver {driver}: {'used' if wanted else 'not used'}")
        loaderconf.set_compat(_below(root), library.directory if library is not None and wanted else "")
    return wanted


def disable_device_node_modification(target: HookTarget, simulated: str, log: Log) -> bool:
    """Tell the driver's libraries in the container to leave device nodes alone. True if something was to be done.

    simulated: directory of a simulated machine; its driver has no files in the container's /proc yet.
    """
    from nvc.driver.runtime import read_proc_files

    if simulated:
        from nvc.sim import host

        files = read_proc_files(host(simulated), log)
        return bool(apply(_locate(target, log), "/", (Tmpfs(SIMULATED_PROC, 0o555, files=files),), log))
    texts = {file.path: file.text for file in read_proc_files(Host(), log)}
    if _PARAMS not in texts:
        return False
    with _open(target) as root:
        return cover(root, _PARAMS, texts[_PARAMS], log)


def update_application_profile(target: HookTarget, log: Log) -> bool:
    """Show graphics programs the GPUs whose nodes the container has. True if something was to be done.

    On a read-only root nothing is done: graphics then sees all GPUs that it can open.
    """
    with _open(target) as root:
        minors = tuple(sorted(_minors(root)))
    if not minors:
        return False
    try:
        return bool(apply(_locate(target, log), "/", (ApplicationProfile(minors),), log))
    except MountError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EROFS:
            log.warn(f"update-application-profile: {error.message}")
            return False
        raise


def share(target: HookTarget, option: str, config_path: str, simulated: str, driver_root: str, log: Log) -> bool:
    """Limit the container to a share of the GPUs that it was given. True if something was done.

    option: a share spec that precedes what the container asks for. config_path: file with the node's rules, or "".
    simulated: directory of a simulated machine, or "". driver_root: where the driver is. Raises NvcError, DeviceError
    for a GPU that is given and not known.
    """
    about = target.identifier, target.bundle, target.seccomp, target.guard_off, target.fixed, target.name
    request = ShareRequest(target.share, option, target.environment, config_path, *about)
    if not request.may_matter():
        return False
    from nvc.inject import share as inject
    from nvc.inject.api import Config, Context

    located = _locate(target, log)
    with _open(target) as root:
        # Not the tree alone: a volume over a node hides it there, and takes nothing from the container.
        seen = _minors(root, files=bool(simulated))
        reached = given(
            target.config,
            target.bundle,
            simulated,
            driver_root,
            seen=seen,
            inside=lambda path: _inside(root, path),
        )
    if not reached:
        return False  # devices of others
    config = Config(root=driver_root or "/", sim=simulated, timeout=target.timeout, inside=True)
    with Context(config, log=log) as context:
        selection = Selection(gpus=reached.select(context.device_info()))
        driver = context.driver_info()
        _, operations = inject.plan(request, selection, context.host, driver, located.container, log)
    return bool(operations) and bool(apply(located, "/", operations, log))


def chmod(target: HookTarget, mode: int, paths: Sequence[str], log: Log) -> int:
    """Change the mode of directories that an engine made (old crun made /dev/dri unreadable). How many were changed.

    What is missing, is no directory, or belongs to the host's own /dev is left alone.
    """
    changed = 0
    with _open(target) as root:
        own = root.fd.stat().st_dev
        foreign = {os.stat(path).st_dev for path in ("/dev", "/sys", "/proc")} - {own}
        for path in paths:
            try:
                with root.resolve(path) as found:
                    status = found.stat()
                    if not stat.S_ISDIR(status.st_mode) or status.st_dev in foreign:
                        log.warn(f"chmod: {path} is left alone")
                        continue
                    # A link of the image must not lead it to a directory that is bound into the container.
                    root.volumes.check(found, path)
                    procfd.by_path(lambda name: os.chmod(name, mode), found)
                    changed += 1
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.EXDEV):
                    raise MountError(f"chmod failed: {root.path}{path}: {reason(error)}") from error
                log.warn(f"chmod: {path}: {reason(error)}")
    return changed


def _open(target: HookTarget) -> Root:
    """Raises ContainerError."""
    with Root.open("/") as here:
        return open_rootfs(here, target.rootfs)


def _below(root: Root) -> Below:
    # In the container's user namespace its root is us.
    return Below(root, os.geteuid(), os.getegid())


def _locate(target: HookTarget, log: Log, *, ldconfig: str = "") -> Located:
    config = ContainerConfig(None, target.rootfs, ldconfig=f"@{ldconfig.removeprefix('@')}" if ldconfig else "")
    return inspect(InspectRequest(config, supervised=False, find_cgroup=False, find_compat=False), log)


def _minors(root: Root, *, files: bool = False) -> list[int]:
    """Numbers of the GPUs whose nodes are in /dev, by any name. files: of the simulated machine they may be files."""
    try:
        names = root.list_directory("/dev")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return []
        # A share would miss the GPUs that are not seen.
        raise MountError(f"path error: {root.path}/dev: {reason(error)}") from error
    found = []
    for name in names:
        try:
            status = root.stat(f"/dev/{name}", follow=False)
        except OSError:
            continue
        usual, minor = number(name), minor_of(status)
        if minor is not None:
            found.append(minor)
        elif usual is not None and stat.S_ISCHR(status.st_mode):
            found.append(os.minor(status.st_rdev))
        elif usual is not None and files and stat.S_ISREG(status.st_mode):
            found.append(usual)
    return found


def _inside(root: Root, path: str) -> os.stat_result | None:
    """What is at a path of the container; None where nothing is, or what may not be looked at."""
    try:
        return root.stat(path)
    except OSError:
        return None
