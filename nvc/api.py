"""The Python API: what ``nvidia-container-cli`` does, as methods. The command line and the hook use nothing else.

    with Context(Config()) as context:
        info = context.driver_info()
        selection = context.select(["0"])
        with context.container(ContainerConfig(pid, rootfs), "supervised compute utility") as session:
            session.mount_driver(info)
            for gpu in selection.gpus:
                session.mount_device(gpu)
            session.update_ldcache()
            session.apply()

Nothing touches the container before ``apply``, which does everything or nothing. docs/api.md has the correspondence
with the ``nvc_*`` functions of libnvidia-container. All errors are ``nvc.errors.NvcError``.
"""

from __future__ import annotations

from nvc.container_messages import ContainerConfig
from nvc.errors import InitializationError, PrivilegeError
from nvc.log import Log
from nvc.model import CSV_DIRECTORY, Host
from nvc.option_words import LibraryOptions, container_options, driver_options, library_options
from nvc.record import Record
from nvc.session import ContainerSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from nvc.driver.facts import NvmlGpu, NvmlSystem
    from nvc.driver.service import DriverClient
    from nvc.model import DeviceNode, DriverInfo, DriverOptions, Gpu, Inventory, Selection

__all__ = ["Config", "ContainerConfig", "ContainerSession", "Context", "require_rights"]


class Config(Record):
    """nvc_config, and what the reference takes from its environment or cannot be told.

    root, ldcache: driver root and the loader cache inside it. csv: directory of Tegra's mount lists, there too.
    uid, gid: of the NVML process; None: nobody's when root, else the caller's. imex: channels whose nodes load-kmods
    creates. sim: directory of a simulated machine.
    timeout: seconds for one answer of a helper. cache: keep the inventory in /run/nvc. debug: log file.
    no_pivot: see ``UpdateLdcache``. inside: the caller is in the container's device cgroup already (a createContainer
    hook), which may be opened while NVML is asked. mps_user: uid whose MPS server containers may use, beside root's.
    """

    root: str = "/"
    ldcache: str = "/etc/ld.so.cache"
    uid: int | None = None
    gid: int | None = None
    imex: tuple[int, ...] = ()
    sim: str = ""
    timeout: float = 10.0
    cache: bool = True
    debug: str = ""
    no_pivot: bool = False
    inside: bool = False
    csv: str = CSV_DIRECTORY
    mps_user: int = 0


class Context:
    """The host's side: what is installed and which devices there are (nvc_context_new, nvc_init).

    Leaving the ``with`` block is nvc_shutdown. options: words such as ``load-kmods``.
    Raises InitializationError for options or a configuration that cannot be used.
    """

    def __init__(self, config: Config | None = None, options: str = "", log: Log | None = None) -> None:
        self.config = config if config is not None else Config()
        self.options: LibraryOptions = library_options(options)
        self._own_log = log is None
        self.log = log if log is not None else _open_log(self.config.debug)
        self.host = _host(self.config)
        self._inventories: dict[DriverOptions, Inventory] = {}
        self._current: Inventory | None = None
        self._platform: str | None = None
        if self.options.load_kmods and not self.host.simulated:
            from nvc.driver.kmods import load_kmods

            # WSL's module is built in; Tegra's are not this one, and make their nodes themselves.
            if not self.platform:
                imex = not self.options.no_create_imex_channels
                load_kmods(self.host, self.config.imex, create_imex=imex, log=self.log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the context (nvc_shutdown). Sessions are closed on their own."""
        if self._own_log:
            self.log.close()

    @property
    def platform(self) -> str:
        """WSL or TEGRA of ``nvc.model``, "" on a machine with NVIDIA's ordinary driver. Looked at once."""
        if self._platform is None:
            from nvc.driver.places import platform

            self._platform = platform(self.host)
        return self._platform

    def inventory(self, options: str = "") -> Inventory:
        """Everything installed, from the inventory cache when it is valid. options: words such as ``no-mps``.

        Raises DetectionError, InitializationError.
        """
        chosen = driver_options(options)
        if self.config.mps_user:
            chosen = chosen.replace(mps_user=self.config.mps_user)
        found = self._inventories.get(chosen)
        if found is None:
            from nvc.driver.inventory import cache_path, load

            # Nothing tells when Windows or a list of Tegra's changes, so there everything is asked anew.
            keep = self.config.cache and not self.platform
            cache = cache_path(self.host) if keep else None
            found = load(self.host, chosen, self._query, cache=cache, log=self.log)
            self._inventories[chosen] = found
        self._current = found
        return found

    def current_inventory(self) -> Inventory:
        """The inventory that was asked for last, or that of no options."""
        return self._current if self._current is not None else self.inventory()

    def driver_info(self, options: str = "") -> DriverInfo:
        """Versions and files of the driver (nvc_driver_info_new)."""
        return self.inventory(options).driver

    def device_info(self, options: str = "") -> tuple[Gpu, ...]:
        """The GPUs with their MIG devices (nvc_device_info_new)."""
        return self.inventory(options).gpus

    def select(
        self, devices: Sequence[str], mig_config: str | None = None, mig_monitor: str | None = None, options: str = ""
    ) -> Selection:
        """The devices that selectors such as ``0``, ``all`` or ``GPU-...`` name.

        Raises DeviceError, MigConfigError, MigMonitorError.
        """
        from nvc.selection import select

        return select(self.inventory(options), devices, mig_config=mig_config, mig_monitor=mig_monitor)

    def require(self, expressions: Sequence[str], selection: Selection, options: str = "") -> None:
        """Check requirements such as ``cuda>=12.0`` for every selected GPU, for the parents of MIG devices, or once.

        Raises RequirementError for the first that fails or cannot be read.
        """
        if not expressions:
            return
        from nvc.requirements import Facts, check

        driver = self.inventory(options).driver
        gpus = [*selection.gpus, *(mig.gpu for mig in selection.migs)]
        facts = [Facts(driver.cuda_version, driver.nvrm_version, gpu.arch, gpu.brand) for gpu in gpus]
        for fact in facts or [Facts(driver.cuda_version, driver.nvrm_version)]:
            for expression in expressions:
                check(expression, fact)

    def nvcaps_style(self, options: str = "") -> int:
        """NVCAPS_NONE, NVCAPS_PROC or NVCAPS_DEV of ``nvc.model`` (nvc_nvcaps_style)."""
        return self.inventory(options).nvcaps_style

    def nvcaps_device_from_proc_path(self, path: str) -> DeviceNode:
        """The device node of a capability file below /proc/driver/nvidia. Raises DetectionError."""
        from nvc.driver.nvcaps import node_of

        return node_of(self.host, path)

    def container(
        self, config: ContainerConfig, options: str | None = None, *, early: bool = False
    ) -> ContainerSession:
        """Look a container up and open a session on it (nvc_container_new).

        options: words such as ``supervised compute``; None: as the reference's API (standalone, utility only).
        early: return while the container is still being looked up; see ContainerSession. Raises ContainerError.
        """
        return ContainerSession(self, config, container_options(options), early=early)

    def _query(self) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        """Ask NVML, in a process without rights that ends with the question."""
        from nvc.driver.service import start
        from nvc.linux.undo import Undo

        config = self.config
        with Undo() as undo:
            if config.inside:
                from nvc.driver.reach import reach

                reach(self.host, undo, self.log)
            answers = self._answers(start)
            problems = undo.rollback()
        if problems:
            raise InitializationError(f"the container's device cgroup cannot be closed again: {problems[0]}")
        return answers

    def _answers(self, start: Callable[..., DriverClient]) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        config = self.config
        with start(self.host, uid=config.uid, gid=config.gid, deadline=config.timeout, log=self.log) as client:
            system = client.system()
            return system, tuple(client.gpu(index) for index in range(system.gpu_count))


def require_rights() -> None:
    """Whoever may not mount learns it before anything is looked up, as from the reference (spec 1.7.1, step 2).

    Raises PrivilegeError. ``apply`` needs this right; everything else may do without.
    """
    from nvc.linux.rights import CAP_SYS_ADMIN
    from nvc.linux.syscalls import capget

    _, permitted, _ = capget()
    if not permitted & 1 << CAP_SYS_ADMIN:
        hint = "configure needs root, of the host or of the container's user namespace; --dry-run does not"
        raise PrivilegeError("capability change failed: operation not permitted", hint=hint)


def _open_log(path: str) -> Log:
    if not path:
        return Log.none()
    from nvc.log import open_log

    return open_log(path)


def _host(config: Config) -> Host:
    if config.sim:
        from nvc.sim import host

        return host(config.sim).replace(csv=config.csv)
    for name, value in (("root", config.root), ("ldcache", config.ldcache)):
        if not value.startswith("/"):
            raise InitializationError(f"invalid {name}: {value!r}", hint=f"--{name} takes an absolute path")
    return Host(root=config.root, ldcache=config.ldcache, csv=config.csv)
