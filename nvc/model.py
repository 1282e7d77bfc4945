"""The values that modules exchange. Frozen, without behaviour, JSON-ready.

Paths are absolute. A *driver path* is relative to the driver root (``Host.root``) and starts with "/"; a
*container path* is relative to the container's rootfs and starts with "/".
"""

from __future__ import annotations

from nvc.base.record import Record

#: Linux's historical device major of every /dev/nvidia<N>, nvidiactl and nvidia-modeset (kernel: Documentation/
#: admin-guide/devices.txt; driver: NV_MAJOR_DEVICE_NUMBER).
NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
MODESET_MINOR = 254

# Where there is no ordinary NVIDIA driver: Windows' below WSL2, and Tegra's (Jetson). "" is the ordinary one.
WSL, TEGRA = "wsl", "tegra"
#: The one device node of WSL2.
DXG_NODE = "/dev/dxg"
#: Tegra's lists of what a container needs.
CSV_DIRECTORY = "/etc/nvidia-container-runtime/host-files-for-container.d"

# Which kind of nvcaps the driver has (nvc_nvcaps_style()).
NVCAPS_NONE, NVCAPS_PROC, NVCAPS_DEV = 0, 1, 2


class Host(Record):
    """Where the host's driver is found.

    root: driver root; user-space files are read there, and /dev and the /proc files too where there is no dev_root.
    system: where /proc/devices, /proc/driver/nvidia-caps and /sys are read: "/" unless the machine is simulated.
    ldcache: path of the loader cache inside ``root``.
    simulated: name of the simulated machine, or "".
    csv: driver path of the directory of Tegra's mount lists. lists: driver paths of the only lists, () for those in
    ``csv``. ignored_links: patterns of links in the lists that are left out.
    dev_root: where device nodes and the driver's /proc are, "" for the driver root. libraries, configs: driver paths of
    the only directories in which libraries and configuration files are looked for, () for the usual ones.
    """

    root: str = "/"
    ldcache: str = "/etc/ld.so.cache"
    system: str = "/"
    simulated: str = ""
    csv: str = CSV_DIRECTORY
    lists: tuple[str, ...] = ()
    ignored_links: tuple[str, ...] = ()
    dev_root: str = ""
    libraries: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()

    @property
    def nodes(self) -> str:
        """The root of device nodes and of the driver's /proc."""
        return self.dev_root or self.root


class DriverOptions(Record):
    """The option string of ``nvc_driver_info_new`` (libnvidia-container.md 2.2.1).

    csv_all: on Tegra, every mount list, not only those of the base set; the reference has this option per container.
    mps_user: uid whose MPS server is used beside root's; 0: root's alone. No option string has it: it is configured.
    """

    no_glvnd: bool = False
    no_uvm: bool = False
    no_modeset: bool = False
    no_mps: bool = False
    no_persistenced: bool = False
    no_fabricmanager: bool = False
    no_gsp_firmware: bool = False
    csv_all: bool = False
    mps_user: int = 0


class DeviceNode(Record):
    """A character device: driver path and number."""

    path: str
    major: int
    minor: int


class DrmNode(Record):
    """A node of the kernel's graphics subsystem. link: driver path of its link in /dev/dri/by-path, "" without one."""

    node: DeviceNode
    link: str = ""


class DriverFile(Record):
    """A file (or socket, or directory) of the driver that a container may get.

    path: driver path, links resolved (firmware and "ipc": unresolved).
    kind: "library", "library32", "binary", "firmware", "ipc", "config" (a loader's or server's configuration) or
    "module" (of the X server); of a platform's own files "store" (WSL's driver
    store) and "csv-file", "csv-directory", "csv-link" (Tegra; a link's text is in ``links``).
    capability: the driver capability it belongs to ("compute", ...), "" for always, "every" for containers with all.
    links: developer links made beside it in the container, as (name, text) pairs. A "config" has (path, library)
    pairs: places at which it names libraries of the driver.
    place: container path, or "" for the directory of its kind; without a leading "/", below that directory.
    """

    path: str
    kind: str
    capability: str
    links: tuple[tuple[str, str], ...] = ()
    place: str = ""


class DriverEndpoint(DriverFile):
    """A socket of one of the driver's daemons, or the directory of such sockets; kind "ipc".

    path: driver path, links *not* resolved: it is looked up anew, step by step, when it is mounted, and is the
    container path too. owners: uids that it may belong to beside root. server: the socket that a directory must hold,
    or "" for a path that is a socket itself.
    """

    owners: tuple[int, ...] = ()
    server: str = ""


class DriverInfo(Record):
    """What is installed: versions and files (nvc_driver_info).

    platform: WSL, TEGRA or "". components: files that a container gets at their own paths, whatever its capabilities.
    more: what containers get beyond libnvidia-container's lists, so beyond ``list``: graphics above all.
    """

    nvrm_version: str
    cuda_version: str
    libraries: tuple[DriverFile, ...]
    libraries32: tuple[DriverFile, ...]
    binaries: tuple[DriverFile, ...]
    ipcs: tuple[DriverEndpoint, ...]
    firmwares: tuple[DriverFile, ...]
    nodes: tuple[DeviceNode, ...]
    platform: str = ""
    components: tuple[DriverFile, ...] = ()
    more: tuple[DriverFile, ...] = ()


class Nvcap(Record):
    """Access to one nvcap: its capability file below /proc and, with /dev style, its device node."""

    proc_path: str
    node: DeviceNode | None = None


class MigDevice(Record):
    """A MIG device: compute instance ``ci`` of GPU instance ``gi``. index: enumeration index on its GPU.

    profile: "1g.10gb"; "" where NVML does not say.
    """

    index: int
    uuid: str
    gi: int
    ci: int
    gi_access: Nvcap
    ci_access: Nvcap
    profile: str = ""


class Gpu(Record):
    """A GPU. index: NVML order; minor: number of /dev/nvidia<minor>; bus_id: %08x:%02x:%02x.0, lower case.

    proc_path: its directory below /proc/driver/nvidia/gpus as the kernel names it, or "" when there is none.
    mig_nodes: every nvidia-caps node of this GPU that mig-minors names (for MIG config and monitor).
    more_nodes: on a Tegra, the other nodes that its use needs. memory: total bytes, 0 if unknown.
    drm: where the nvidia-drm module is loaded.
    """

    index: int
    minor: int
    model: str
    brand: str
    uuid: str
    bus_id: str
    arch: str
    node: DeviceNode
    proc_path: str
    mig_capable: bool = False
    mig_caps_path: str = ""
    mig_devices: tuple[MigDevice, ...] = ()
    mig_nodes: tuple[DeviceNode, ...] = ()
    more_nodes: tuple[DeviceNode, ...] = ()
    memory: int = 0
    drm: tuple[DrmNode, ...] = ()


class ImexChannel(Record):
    """An IMEX channel. node is None when the host has no such node."""

    id: int
    node: DeviceNode | None


class Inventory(Record):
    """Everything found on a host.

    nvcaps_style: NVCAPS_NONE, NVCAPS_PROC or NVCAPS_DEV.
    warnings: what was missing or skipped, for the log.
    """

    driver: DriverInfo
    gpus: tuple[Gpu, ...]
    nvcaps_style: int
    mig_config: Nvcap | None
    mig_monitor: Nvcap | None
    warnings: tuple[str, ...] = ()


class ProcFile(Record):
    """A small text file that is shown to the container: container path, permission bits, text."""

    path: str
    mode: int
    text: str


class MigSelection(Record):
    """A MIG device with its parent."""

    gpu: Gpu
    mig: MigDevice


class Selection(Record):
    """The devices that a request selects, in its order (parents of MIG devices included in gpus)."""

    gpus: tuple[Gpu, ...] = ()
    migs: tuple[MigSelection, ...] = ()
    everything: bool = False
    mig_config: tuple[Gpu, ...] = ()
    mig_monitor: tuple[Gpu, ...] = ()


class CgroupRef(Record):
    """The container's device cgroup. version: 1 or 2; path: its directory as this process sees it.

    private: None or, where the hierarchy's mounts are outside of the cgroup namespace, its controllers; ``path`` is
    then below that namespace's root (``nvc.linux.cgroup.PrivateNamespace``).
    """

    version: int
    path: str
    private: str | None = None


class Container(Record):
    """A created, not yet started container, as looked up by ``nvc.container.lookup.inspect``.

    supervised: an OCI runtime made it; False: standalone (enroot, LXC, a chroot).
    mount_namespace: path of the namespace to enter, or "" to stay in the caller's.
    owner_uid, owner_gid: host ids of the container's root.
    compat_directory: container path of the CUDA forward-compatibility libraries to prefer, or "".
    """

    pid: int
    rootfs: str
    supervised: bool
    mount_namespace: str
    binaries_directory: str
    libraries_directory: str
    libraries32_directory: str
    ldconfig: str
    owner_uid: int
    owner_gid: int
    cgroup: CgroupRef | None = None
    compat_directory: str = ""
