"""Decide what to do to a container: pure functions from what was found to operations.

One function for every ``nvc_*_mount`` of the reference library, ``merge`` to join their answers. Which file goes where
with which attributes is in the rows of ``MOUNTS``; which device node needs which capability is in ``NODES``.
Facts: libnvidia-container.md 5.1 to 5.6 and 6.4.
"""

from __future__ import annotations

from nvc.base.errors import MountError
from nvc.base.record import Record
from nvc.container.operations import (
    DEVICE,
    DIRECTORY,
    ENDPOINT,
    REGULAR,
    AllowDevices,
    ApplicationProfile,
    BindMount,
    EndpointMount,
    ShareFiles,
    Symlink,
    Tmpfs,
    UpdateLdcache,
)
from nvc.model import ProcFile
from nvc.request.capabilities import wants, wants_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.container.operations import Operation
    from nvc.model import (
        Container,
        DeviceNode,
        DriverEndpoint,
        DriverFile,
        DriverInfo,
        Gpu,
        ImexChannel,
        MigDevice,
        Nvcap,
    )
    from nvc.request.capabilities import DriverCapabilities

PROC_DRIVER = "/proc/driver/nvidia"
CAPABILITIES_TREE = "/proc/driver/nvidia/capabilities"
CAPS_DIRECTORY = "/dev/nvidia-caps"
#: Where the driver information goes when the machine's own procfs has no nvidia directory to cover (simulated).
SIMULATED_PROC = "/proc/driver"

#: What -> (kind of source, mount attributes). Section 5.1. Two deliberate differences: sockets and firmware may be
#: missing, and the nvidia-caps directory is read-only, because it is the host's own devtmpfs.
MOUNTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "binary": (REGULAR, ("ro", "nodev", "nosuid")),
    "library": (REGULAR, ("ro", "nodev", "nosuid")),
    "library32": (REGULAR, ("ro", "nodev", "nosuid")),
    "firmware": (REGULAR, ("ro", "nodev", "nosuid")),
    "config": (REGULAR, ("ro", "nodev", "nosuid")),
    "module": (REGULAR, ("ro", "nodev", "nosuid")),
    "store": (REGULAR, ("ro", "nodev", "nosuid")),
    "csv-file": (REGULAR, ("ro", "nodev", "nosuid")),
    "csv-directory": (DIRECTORY, ("ro", "nodev", "nosuid")),
    "ipc": (ENDPOINT, ("nodev", "nosuid", "noexec")),
    "node": (DEVICE, ("ro", "nosuid", "noexec")),
    # A simulated machine's manager serves it as a file, which can be written to only without "ro".
    "served-node": (REGULAR, ("nodev", "nosuid", "noexec")),
    "proc-gpu": (DIRECTORY, ("ro", "nodev", "nosuid", "noexec")),
    "nvcap": (REGULAR, ("ro", "nodev", "nosuid", "noexec")),
    "nvcap-tree": (DIRECTORY, ("ro", "nodev", "nosuid", "noexec")),
    "nvcap-nodes": (DIRECTORY, ("ro", "nosuid", "noexec")),
}
_OPTIONAL = ("firmware",)


class Scope(Record):
    """For which container, and how far.

    capabilities: the driver capabilities it gets. devbind, cgroups: False with --no-devbind, --no-cgroups.
    proc: PROC_DRIVER, or SIMULATED_PROC. served: device nodes that are files of a simulated machine's manager.
    shared: the container has a share of its GPUs. Then it gets no node of nvidia-drm and nvidia-modeset, by which
    the kernel allocates video memory that no enforcer sees.
    """

    container: Container
    capabilities: DriverCapabilities
    devbind: bool = True
    cgroups: bool = True
    proc: str = PROC_DRIVER
    served: tuple[str, ...] = ()
    shared: bool = False


def driver_mount(scope: Scope, driver: DriverInfo, proc_files: Iterable[ProcFile]) -> tuple[Operation, ...]:
    """The cover of /proc/driver/nvidia, driver files and common device nodes (nvc_driver_mount, 5.2)."""
    return (
        *driver_cover(scope, driver, proc_files),
        *driver_files(scope, driver),
        *driver_nodes(scope, driver),
    )


def driver_cover(scope: Scope, driver: DriverInfo, proc_files: Iterable[ProcFile]) -> tuple[Operation, ...]:
    """The cover of /proc/driver/nvidia: WSL and Tegra have no such directory."""
    return () if driver.platform else (_proc(scope, files=tuple(proc_files)),)


def driver_files(scope: Scope, driver: DriverInfo) -> tuple[Operation, ...]:
    """The driver's files, which are known before NVML is.

    WSL and Tegra have nothing that reads application profiles (section 8).
    """
    container, capabilities = scope.container, scope.capabilities
    operations: list[Operation] = []
    if not driver.platform and "graphics" in capabilities.libraries:
        operations.append(ApplicationProfile())
    operations += _files("binary", driver.binaries, capabilities, container.binaries_directory)
    operations += _files("library", driver.libraries, capabilities, container.libraries_directory)
    if "compat32" in capabilities:
        operations += _files("library32", driver.libraries32, capabilities, container.libraries32_directory)
    operations += _more(scope, driver)
    operations += _links(operations, driver, capabilities)
    operations += _files("firmware", driver.firmwares, capabilities, "")
    operations += [_endpoint(file) for file in driver.ipcs if wants(capabilities, file)]
    operations += _components(driver.components)
    return tuple(operations)


def driver_nodes(scope: Scope, driver: DriverInfo) -> tuple[Operation, ...]:
    """The device nodes of no GPU."""
    operations: list[Operation] = []
    for node in driver.nodes:
        if driver.platform or wants_node(scope.capabilities, node):
            operations += [] if scope.shared and is_display(node) else _node(scope, node)
    return tuple(operations)


def component_directories(driver: DriverInfo) -> tuple[str, ...]:
    """Where the libraries are that Tegra's lists name: directories that a container's loader may not know.

    Not WSL's driver store: its libraries are loaded by path, and some have the names of those that do it.
    """
    paths = (file.path for file in driver.components if file.kind == "csv-file")
    split = (path.rpartition("/") for path in paths)
    return tuple(dict.fromkeys(directory for directory, _, name in split if directory and ".so" in name))


def device_mount(scope: Scope, gpu: Gpu) -> tuple[Operation, ...]:
    """A GPU's node, its directory below /proc and its place in the application profile (nvc_device_mount, 5.3)."""
    operations = _node(scope, gpu.node)
    for node in gpu.more_nodes:
        operations += _node(scope, node)
    operations += _drm(scope, gpu)
    if gpu.proc_path:
        operations.append(_proc(scope, directories=(gpu.proc_path,)))
        operations.append(_mount("proc-gpu", gpu.proc_path))
    # The profile counts by these numbers, which GPUs of WSL and Tegra do not have.
    ordinary = gpu.node.path.startswith("/dev/nvidia")
    if ordinary and "graphics" in scope.capabilities.libraries:
        operations.append(ApplicationProfile((gpu.minor,)))
    return tuple(operations)


def mig_access(scope: Scope, mig: MigDevice) -> tuple[Operation, ...]:
    """The right to use one MIG device: its GPU instance's, then its compute instance's nvcap (5.4)."""
    return (*_nvcap(scope, mig.gi_access), *_nvcap(scope, mig.ci_access))


def mig_config(scope: Scope, nvcap: Nvcap) -> tuple[Operation, ...]:
    """The right to configure MIG: the whole capability tree (nvc_mig_config_global_caps_mount, 5.4)."""
    return _nvcap_tree(scope, nvcap)


def mig_monitor(scope: Scope, nvcap: Nvcap) -> tuple[Operation, ...]:
    """The right to monitor all MIG devices (nvc_mig_monitor_global_caps_mount, 5.4)."""
    return _nvcap_tree(scope, nvcap)


def device_mig_caps(scope: Scope, gpu: Gpu) -> tuple[Operation, ...]:
    """Cgroup rules for every nvcap of a GPU; the nodes come with the tree (nvc_device_mig_caps_mount, 5.4)."""
    if not scope.cgroups or not gpu.mig_nodes:
        return ()
    return (AllowDevices(tuple((node.major, node.minor) for node in gpu.mig_nodes)),)


def imex_channel(scope: Scope, channel: ImexChannel) -> tuple[Operation, ...]:
    """An IMEX channel's node (nvc_imex_channel_mount, 5.5). Raises MountError when the host does not have it."""
    if channel.node is None:
        raise MountError(
            f"stat failed: /dev/nvidia-caps-imex-channels/channel{channel.id}: no such file or directory",
            hint="this host has no such IMEX channel; --load-kmods creates the node when the driver supports IMEX",
        )
    return tuple(_node(scope, channel.node))


def ldcache_update(
    container: Container,
    *,
    compat: str = "",
    more: tuple[str, ...] = (),
    no_pivot: bool = False,
    limit: float = 10.0,
) -> tuple[Operation, ...]:
    """The loader cache for what was mounted (nvc_ldcache_update, 7.1); ``compat`` is searched first when given.

    more: directories of libraries that were mounted at their own paths.

    Nothing on a host without ldconfig.
    """
    if not container.ldconfig:
        return ()
    wanted = (compat, container.libraries_directory, container.libraries32_directory, *more)
    directories = tuple(dict.fromkeys(directory for directory in wanted if directory))
    return (UpdateLdcache(container.ldconfig, directories, no_pivot, limit),)


def merge(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """One plan from the answers of several functions above: nothing twice, and in an order that works.

    First the files of a share, which others show, and the file systems of our own (their mount points are needed by
    what follows), then files, links and nodes as they were asked for, then all cgroup rules as one, the loader cache
    last. A second mount on the same target is dropped, and so is one whose target a mounted tree shows anyway.
    """
    shares: list[ShareFiles] = []
    systems: dict[str, Tmpfs] = {}
    profile: ApplicationProfile | None = None
    mounts: dict[str, BindMount] = {}
    others: dict[str, BindMount | Symlink] = {}
    rules: dict[tuple[int, int], None] = {}
    cache: UpdateLdcache | None = None
    for operation in operations:
        if isinstance(operation, ShareFiles):
            shares.append(operation)
        elif isinstance(operation, Tmpfs):
            known = systems.get(operation.target)
            systems[operation.target] = operation if known is None else _join(known, operation)
        elif isinstance(operation, ApplicationProfile):
            minors = {*operation.minors, *(profile.minors if profile else ())}
            profile = ApplicationProfile(tuple(sorted(minors)))
        elif isinstance(operation, BindMount):
            if operation.container_path not in mounts:
                mounts[operation.container_path] = operation
                others[operation.container_path] = operation
        elif isinstance(operation, Symlink):
            others.setdefault(operation.container_path, operation)
        elif isinstance(operation, AllowDevices):
            rules.update(dict.fromkeys(operation.rules))
        else:
            cache = operation
    trees = [m.container_path + "/" for m in mounts.values() if m.source == DIRECTORY]
    kept = [o for o in others.values() if not any(o.container_path.startswith(tree) for tree in trees)]
    return (
        *shares,
        *systems.values(),
        *((profile,) if profile else ()),
        *kept,
        *((AllowDevices(tuple(rules)),) if rules else ()),
        *((cache,) if cache else ()),
    )


def _join(first: Tmpfs, second: Tmpfs) -> Tmpfs:
    # A file with text wins over an empty mount point of the same name.
    files = {file.path: file for file in first.files}
    for file in second.files:
        if file.path not in files or not files[file.path].text:
            files[file.path] = file
    return first.replace(
        directories=tuple(dict.fromkeys((*first.directories, *second.directories))), files=tuple(files.values())
    )


def _mount(what: str, host_path: str, container_path: str = "") -> BindMount:
    source, attributes = MOUNTS[what]
    return BindMount(host_path, container_path or host_path, source, attributes, optional=what in _OPTIONAL)


def _files(what: str, files: Iterable[DriverFile], capabilities: DriverCapabilities, directory: str) -> list[Operation]:
    chosen = (file for file in files if wants(capabilities, file))
    return [_mount(what, file.path, _place(file, directory)) for file in chosen]


def _place(file: DriverFile, directory: str) -> str:
    """Container path, "" for the file's own. directory: of its kind in this container, "" where each has its own."""
    if file.place.startswith("/"):
        return file.place
    return f"{directory}/{file.place or file.path.rpartition('/')[2]}" if directory else ""


def _more(scope: Scope, driver: DriverInfo) -> list[Operation]:
    container = scope.container
    places = {"library": container.libraries_directory, "binary": container.binaries_directory}
    made: list[Operation] = []
    for file in driver.more:
        made += _files(file.kind, (file,), scope.capabilities, places.get(file.kind, ""))
        if file.kind == "config" and container.libraries_directory and wants(scope.capabilities, file):
            # Where it names a library by a path of the host.
            made += [Symlink(path, f"{container.libraries_directory}/{name}") for path, name in file.links]
    return made


def is_display(node: DeviceNode) -> bool:
    """Whether video memory is allocated through it that no share counts."""
    return node.path.rpartition("/")[2] == "nvidia-modeset"


def _drm(scope: Scope, gpu: Gpu) -> list[Operation]:
    """A GPU's DRM nodes. A GPU that is divided has none to give: they belong to all of its parts."""
    if scope.shared or gpu.mig_devices or "graphics" not in scope.capabilities.libraries:
        return []
    made: list[Operation] = []
    for drm in gpu.drm:
        made += _node(scope, drm.node)
        if drm.link and scope.devbind:
            made.append(Symlink(drm.link, f"../{drm.node.path.rpartition('/')[2]}"))
    return made


def _endpoint(file: DriverEndpoint) -> EndpointMount:
    source, attributes = MOUNTS["ipc"]
    return EndpointMount(
        file.path, file.path, source, attributes, optional=True, owners=file.owners, server=file.server
    )


def _links(mounts: Iterable[Operation], driver: DriverInfo, capabilities: DriverCapabilities) -> list[Operation]:
    # Section 5.2 step 6: beside each mounted library, as its row in the driver tables says.
    links: dict[str, tuple[tuple[str, str], ...]] = {}
    for file in (*driver.libraries, *driver.libraries32, *driver.more):
        if file.kind != "config" and wants(capabilities, file):
            links[file.path] = links.get(file.path, ()) + file.links
    made: list[Operation] = []
    for mount in mounts:
        if isinstance(mount, BindMount):
            directory = mount.container_path.rpartition("/")[0]
            made += [Symlink(f"{directory}/{name}", text) for name, text in links.get(mount.host_path, ())]
    return made


def _components(files: Iterable[DriverFile]) -> list[Operation]:
    """Each at its own path, which others in the container refer to."""
    made: list[Operation] = []
    for file in files:
        if file.kind == "csv-link":
            made += [Symlink(file.path, text) for _, text in file.links]
        else:
            made.append(_mount(file.kind, file.path))
    return made


def _node(scope: Scope, node: DeviceNode) -> list[Operation]:
    operations: list[Operation] = []
    if node.path in scope.served:
        return [_mount("served-node", node.path)] if scope.devbind else []
    if scope.devbind:
        operations.append(_mount("node", node.path).replace(major=node.major, minor=node.minor))
    if scope.cgroups:
        operations.append(AllowDevices(((node.major, node.minor),)))
    return operations


def _proc(scope: Scope, *, directories: tuple[str, ...] = (), files: tuple[ProcFile, ...] = ()) -> Tmpfs:
    return Tmpfs(scope.proc, 0o555, directories, files)


def _nvcap(scope: Scope, nvcap: Nvcap) -> tuple[Operation, ...]:
    point = ProcFile(nvcap.proc_path, 0o444, "")
    node = [] if nvcap.node is None else _node(scope, nvcap.node)
    return (_proc(scope, files=(point,)), _mount("nvcap", nvcap.proc_path), *node)


def _nvcap_tree(scope: Scope, nvcap: Nvcap) -> tuple[Operation, ...]:
    operations: list[Operation] = [
        _proc(scope, directories=(CAPABILITIES_TREE,)),
        _mount("nvcap-tree", CAPABILITIES_TREE),
    ]
    if nvcap.node is not None:
        # The directory is shown even with --no-devbind, as the reference does.
        operations.append(_mount("nvcap-nodes", CAPS_DIRECTORY))
        if scope.cgroups:
            operations.append(AllowDevices(((nvcap.node.major, nvcap.node.minor),)))
    return tuple(operations)
