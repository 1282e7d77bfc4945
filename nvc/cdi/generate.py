"""From an inventory to a CDI spec: a pure function.

What a container gets is decided by ``nvc.container.plan``, the planner of ``configure``: its operations for the
driver and for
each device are told in the words of CDI here. So a library, a node or a rule is written once, and both ways give the
same. What CDI cannot say (a mount below /proc, which runtimes refuse) is left to hooks, or to the container's own
procfs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nvc.base.errors import DeviceError, InputError
from nvc.base.record import Record
from nvc.cdi import rules
from nvc.cdi.spec import CdiDevice, CdiDeviceNode, CdiEdits, CdiHook, CdiMount, CdiSpec
from nvc.container import plan
from nvc.container.operations import DEVICE, ApplicationProfile, BindMount, EndpointMount, Symlink, Tmpfs
from nvc.driver.locate import host_path
from nvc.driver.tegra import UNKNOWN
from nvc.model import TEGRA, WSL, Container
from nvc.request.capabilities import WORDS, DriverCapabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nvc.cdi.gather import Surroundings
    from nvc.container.operations import Operation
    from nvc.model import DriverInfo, Gpu, Host, Inventory, MigDevice

STRATEGIES = ("index", "uuid", "type-index")
#: "auto" is what the machine is: one of the next three.
MODES = ("auto", "nvml", "wsl", "csv", "management")
#: Of GPUs; the modes of ``nvc.cdi.gated`` have classes of their own.
DEFAULT_CLASS = "gpu"
#: Mode -> platform of the machines that it is for.
PLATFORMS = {"nvml": "", "wsl": WSL, "csv": TEGRA}
#: Every hook that can be named, in the order in which they run: a compat directory must be known to ldconfig.
HOOKS = (
    "create-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
    "share",
)
#: Where programs go in the container: in PATH wherever the host keeps them.
_BINARIES = "/usr/bin"
#: Never empty: without it runc starts a hook with the container's environment (CVE-2025-23266).
_HOOK_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
#: The order in which mount options are written. rprivate: nothing mounted there travels.
_OPTIONS = ("ro", "nosuid", "nodev", "noexec", "rbind", "rprivate")
#: A hook named in a spec: the program, and the words before its own.
_PREFIXES = {"nvc-py": ("cdi-hook",), "nvidia-ctk": ("hook",)}
_OURS = ("nvc-cdi-hook", "nvc-py")
#: Compute capability of an Orin, whose images have compat libraries beside those of other GPUs.
_ORIN, _ORIN_COMPAT = "8.7", "/usr/local/cuda/compat_orin"
#: Between two hooks that one start of nvc-cdi-hook carries out.
THEN = "then"
_PARTS = re.compile("[0-9]+|[^0-9]+")


class GenerateOptions(Record):
    """capabilities: driver capabilities, in words. strategies: of STRATEGIES; a device has a name for each.

    hook_path: program that the hooks start. ldconfig: for update-ldcache, "" for the usual one. share: spec that
    counts before what a container asks for, "" for none; None: no hook gives shares. share_fixed: a spec that is final.
    additional_gids: a container's user joins the groups that may use its device nodes; such a spec has version 0.7.0.
    shared: devices are made for containers with shares, whose hook ``with_share`` adds. compat: where a Tegra's
    containers have CUDA compat libraries, "" for the usual directory.
    """

    capabilities: tuple[str, ...] = WORDS
    strategies: tuple[str, ...] = ("index", "uuid")
    vendor: str = "nvidia.com"
    device_class: str = DEFAULT_CLASS
    hook_path: str = "/usr/local/bin/nvc-cdi-hook"
    ldconfig: str = ""
    management: bool = False
    all_device: bool = True
    disabled_hooks: tuple[str, ...] = ()
    share: str | None = None
    share_fixed: str = ""
    additional_gids: bool = True
    shared: bool = False
    compat: str = ""

    @property
    def gives_shares(self) -> bool:
        """Whether a hook gives containers shares."""
        return self.share is not None or bool(self.share_fixed or self.shared)


def generate(inventory: Inventory, around: Surroundings, host: Host, options: GenerateOptions) -> CdiSpec:
    """The spec of this machine, of the oldest version that has what it uses.

    Raises DeviceError when there is nothing to offer, InputError for names that CDI does not allow.
    """
    kind = f"{options.vendor}/{options.device_class}"
    problem = rules.kind_problem(kind)
    if problem:
        raise InputError(problem, hint="--vendor is like nvidia.com, --class like gpu")
    if options.gives_shares and options.hook_path.rpartition("/")[2] not in _OURS:
        raise InputError(f"--share: {options.hook_path} knows no shares", hint=f"name one of {', '.join(_OURS)}")
    if options.gives_shares and {"share", "all"} & set(options.disabled_hooks):
        raise InputError("the hook that gives shares is left out: containers would have whole GPUs")
    maker = _Maker(inventory, around, host, options)
    common = maker.common()
    devices = maker.management() if options.management else maker.devices()
    if options.all_device and not options.management:
        union = _join(device.edits for device in devices)
        devices = [*devices, CdiDevice("all", union)]
    known = set(common.device_nodes)
    tidy = tuple(
        # A device with nothing left would make the file invalid.
        device.replace(edits=edits)
        if (edits := device.edits.replace(device_nodes=tuple(n for n in device.edits.device_nodes if n not in known)))
        != CdiEdits()
        else device
        for device in sorted(devices, key=lambda device: _natural(device.name))
    )
    spec = CdiSpec(rules.BASE, kind, tidy, common)
    return spec.replace(version=spec.minimum_version())


def with_share(edits: CdiEdits, host: Host, options: GenerateOptions, share: str) -> CdiEdits:
    """A device that was made with ``shared``, and a start of the hook that gives its share. share: fixed settings."""
    hook = _hook(options.hook_path, ["share", *_share_words(host, (("--share-fixed", share),))])
    return edits.replace(hooks=(*edits.hooks, hook))


class _Maker:
    def __init__(self, inventory: Inventory, around: Surroundings, host: Host, options: GenerateOptions) -> None:
        self.inventory = inventory
        self.around = around
        self.host = host
        self.options = options
        self.capabilities = DriverCapabilities(options.capabilities)
        # No container is known yet: its libraries go where the host's are, and the hook tells its loader.
        unknown = Container(0, "", False, "", _BINARIES, "", "", "", 0, 0)
        # With --share alone a container may as well have none: that is known when it is made.
        shared = bool(options.share or options.share_fixed or options.shared)
        self.scope = plan.Scope(unknown, self.capabilities, cgroups=False, shared=shared)

    def common(self) -> CdiEdits:
        """What every container with any device gets."""
        driver = self.inventory.driver
        operations = plan.merge(plan.driver_mount(self.scope, driver, ()))
        mounts = [o for o in map(self._fixed, operations) if isinstance(o, BindMount) and o.source != DEVICE]
        links = list(_links(operations))
        present = {mount.container_path for mount in mounts}
        links += self._host_links(present)
        others = (file for file in driver.more if file.kind == "library" and not file.place)
        libraries = [*driver.libraries, *driver.libraries32, *others]
        mounted = [file.path for file in libraries if file.path in present]
        folders = list(dict.fromkeys([*_folders(mounted), *plan.component_directories(driver)]))
        mounted += [file.path for file in driver.components if file.path in present and file.kind == "csv-file"]
        native = {file.path for file in (*driver.libraries, *driver.components)}
        cuda = [path for path in mounted if path in native and path.rpartition("/")[2].startswith("libcuda.so.")]
        hooks = {
            "create-symlinks": _link_words(links),
            "enable-cuda-compat": self._compat_words(driver, mounted) if cuda else None,
            "update-ldcache": self._ldcache_words(folders),
            "disable-device-node-modification": self._params_words(operations),
            "update-application-profile": [] if any(isinstance(o, ApplicationProfile) for o in operations) else None,
            "share": self._share_words(),
        }
        nodes = self._nodes(operations)
        return CdiEdits(
            env=(
                *((f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(_folders(cuda))}",) if cuda else ()),
                # A hook that is registered for every container must not act on this one too.
                "NVIDIA_VISIBLE_DEVICES=void",
            ),
            device_nodes=nodes,
            additional_gids=self._gids(nodes),
            hooks=self._hooks(hooks),
            mounts=tuple(sorted((self._mount(mount) for mount in mounts), key=lambda m: _depth(m.container_path))),
        )

    def _compat_words(self, driver: DriverInfo, mounted: Iterable[str]) -> list[str] | None:
        """None where compat libraries have no driver to speak to: NVIDIA's kernel module, or that of a Tegra with NVML,
        whose releases number no driver."""
        if not driver.platform:
            return [f"--host-driver-version={driver.nvrm_version}"]
        has_nvml = any("/libnvidia-ml.so" in path for path in mounted)
        if driver.platform != TEGRA or not has_nvml or driver.cuda_version == UNKNOWN:
            return None
        arches = {gpu.arch for gpu in self.inventory.gpus}
        directory = self.options.compat or (_ORIN_COMPAT if _ORIN in arches else "")
        return [
            f"--host-cuda-version={driver.cuda_version}",
            *([f"--cuda-compat-container-root={directory}"] if directory else []),
        ]

    def devices(self) -> list[CdiDevice]:
        """Every whole GPU, and every MIG device: a GPU that is divided is only given in parts."""
        found: list[CdiDevice] = []
        for gpu in self.inventory.gpus:
            if not gpu.mig_devices:
                found += self._named(self._gpu(gpu), (str(gpu.index), gpu.uuid, f"gpu{gpu.index}"))
            for mig in gpu.mig_devices:
                pair = f"{gpu.index}:{mig.index}"
                # Drivers before 470 name MIG devices MIG-GPU-.../7/0, and CDI allows no slash in a name.
                found += self._named(self._mig(gpu, mig), (pair, mig.uuid.replace("/", ":"), f"mig{pair}"))
        if not found:
            raise DeviceError("this machine has no GPU to give to a container", hint="nvc-py info lists what is seen")
        return found

    def management(self) -> list[CdiDevice]:
        """One device: every node of the driver."""
        if not self.around.nodes:
            raise DeviceError("this machine has no device node of the driver", hint="nvidia-modprobe makes the nodes")
        return [CdiDevice("all", self._with_nodes(tuple(self._node(path) for path in self.around.nodes)))]

    def _named(self, edits: CdiEdits, names: tuple[str, ...]) -> Iterator[CdiDevice]:
        for strategy in dict.fromkeys(self.options.strategies):
            name = names[STRATEGIES.index(strategy)]
            # The GPU of a Tegra has no UUID.
            if name:
                yield CdiDevice(name, edits)

    def _gpu(self, gpu: Gpu) -> CdiEdits:
        operations = plan.device_mount(self.scope, gpu)
        hooks = self._hooks({"create-symlinks": _link_words(_links(operations))})
        return self._with_nodes(self._nodes(operations)).replace(hooks=hooks)

    def _mig(self, gpu: Gpu, mig: MigDevice) -> CdiEdits:
        operations = (*plan.device_mount(self.scope, gpu), *plan.mig_access(self.scope, mig))
        return self._with_nodes(self._nodes(operations))

    def _with_nodes(self, nodes: tuple[CdiDeviceNode, ...]) -> CdiEdits:
        return CdiEdits(device_nodes=nodes, additional_gids=self._gids(nodes))

    def _gids(self, nodes: Iterable[CdiDeviceNode]) -> tuple[int, ...]:
        if not self.options.additional_gids:
            return ()
        found = (self.around.groups.get(node.path, 0) for node in nodes)
        return tuple(dict.fromkeys(gid for gid in found if gid))

    def _nodes(self, operations: Iterable[Operation]) -> tuple[CdiDeviceNode, ...]:
        paths = (o.container_path for o in operations if isinstance(o, BindMount) and o.source == DEVICE)
        return tuple(self._node(path) for path in sorted(dict.fromkeys(paths), key=_depth))

    def _node(self, path: str) -> CdiDeviceNode:
        # No numbers and no mode: the engine looks when the container is made. nvidia-uvm and nvidia-caps get another
        # major with every boot, and a number in a file would be wrong then.
        host = host_path(self.host.nodes, path)
        return CdiDeviceNode(path, host_path="" if host == path else host, permissions="rw")

    def _fixed(self, operation: Operation) -> Operation | None:
        """With the path that an engine finds the same thing at, whose links are not below the driver root; or None."""
        if not isinstance(operation, EndpointMount):
            return operation
        path = self.around.endpoints.get(operation.host_path, operation.host_path)
        return operation.replace(host_path=path) if path else None

    def _mount(self, mount: BindMount) -> CdiMount:
        words = {*mount.attributes, "rbind", "rprivate"}
        options = tuple(word for word in _OPTIONS if word in words)
        return CdiMount(self._host_path(mount.host_path), mount.container_path, options)

    def _host_path(self, path: str) -> str:
        return host_path(self.host.root, path)

    def _host_links(self, present: set[str]) -> list[tuple[str, str]]:
        """Of the links beside the host's libraries, those that lead to a file that is mounted."""
        links = dict(self.around.library_links)

        def leads(path: str) -> bool:
            for _ in range(len(links)):
                if path in present or path not in links:
                    break
                path = f"{path.rpartition('/')[0]}/{links[path]}"
            return path in present

        return [(path, text) for path, text in links.items() if leads(path)]

    def _ldcache_words(self, folders: list[str]) -> list[str] | None:
        if not folders:
            return None
        program = [f"--ldconfig-path={self.options.ldconfig}"] if self.options.ldconfig else []
        return [*program, *(word for folder in folders for word in ("--folder", folder))]

    def _params_words(self, operations: Iterable[Operation]) -> list[str] | None:
        if self.options.management or not any(isinstance(o, Tmpfs) for o in operations):
            return None
        return [f"--sim={self.host.root}"] if self.host.simulated else []

    def _share_words(self) -> list[str] | None:
        if not self.options.gives_shares or self.options.management or self.options.shared:
            return None
        said = (("--share", self.options.share), ("--share-fixed", self.options.share_fixed))
        return _share_words(self.host, said)

    def _wanted(self, name: str, words: list[str] | None) -> bool:
        return (
            words is not None and name not in self.options.disabled_hooks and "all" not in self.options.disabled_hooks
        )

    def _hooks(self, hooks: dict[str, list[str] | None]) -> tuple[CdiHook, ...]:
        """One entry for all of them when the program is ours, so that it starts once a container; else one each."""
        wanted = [[name, *(words or ())] for name, words in hooks.items() if self._wanted(name, words)]
        if self.options.hook_path.rpartition("/")[2] not in _OURS or not wanted:
            return tuple(_hook(self.options.hook_path, words) for words in wanted)
        first, *others = wanted
        joined = [*first, *(word for words in others for word in (THEN, *words))]
        return (_hook(self.options.hook_path, joined),)


def _hook(path: str, words: list[str]) -> CdiHook:
    program = path.rpartition("/")[2]
    return CdiHook("createContainer", path, (program, *_PREFIXES.get(program, ()), *words), _HOOK_ENVIRONMENT)


def _share_words(host: Host, said: Iterable[tuple[str, str | None]]) -> list[str]:
    machine = [f"--{'sim' if host.simulated else 'root'}={host.root}"] if host.root != "/" else []
    return [*(f"{option}={spec}" for option, spec in said if spec), *machine]


def _link_words(links: Iterable[tuple[str, str]]) -> list[str] | None:
    words = [word for path, text in dict(sorted(links)).items() for word in ("--link", f"{text}::{path}")]
    return words or None


def _links(operations: Iterable[Operation]) -> Iterator[tuple[str, str]]:
    return ((o.container_path, o.text) for o in operations if isinstance(o, Symlink))


def _folders(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(path.rpartition("/")[0] for path in paths))


def _join(parts: Iterable[CdiEdits]) -> CdiEdits:
    """All of them together, nothing twice."""
    every = list(parts)
    nodes = dict.fromkeys(node for edits in every for node in edits.device_nodes)
    hooks = dict.fromkeys(hook for edits in every for hook in edits.hooks)
    gids = dict.fromkeys(gid for edits in every for gid in edits.additional_gids)
    return CdiEdits(
        device_nodes=tuple(sorted(nodes, key=lambda node: _depth(node.path))),
        hooks=tuple(hooks),
        additional_gids=tuple(gids),
    )


def _depth(path: str) -> tuple[int, list[tuple[bool, int, str]]]:
    """A directory before what is in it; numbers by their size."""
    return path.count("/"), _natural(path)


def _natural(text: str) -> list[tuple[bool, int, str]]:
    parts = _PARTS.findall(text)
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
