"""The Python API: the functions of ``nvidia-container-cli`` as methods. The command line and the hook use only this.

    with Context(Config()) as context:
        info = context.driver_info()
        selection = context.select(["0"])
        with context.container(ContainerConfig(pid, rootfs), ContainerOptions(supervised=True)) as session:
            session.mount_driver(info)
            for gpu in selection.gpus:
                session.mount_device(gpu)
            session.update_ldcache()
            session.apply()

Nothing touches the container before ``apply``, which does everything or nothing. All errors (nvc_error) are
``nvc.base.errors.NvcError``. Docstrings name the corresponding functions of libnvidia-container; for nvc_version
there is ``nvc.__version__``. More: docs/internals/api.md.
"""

from __future__ import annotations

import os

from nvc.base.budgets import TIMEOUT_S
from nvc.base.errors import InitializationError, PrivilegeError
from nvc.base.log import Log
from nvc.base.progress import waiting
from nvc.base.record import Record
from nvc.model import CSV_DIRECTORY, DriverOptions, Host
from nvc.request.options import DEFAULT_CONTAINER_OPTIONS, ContainerOptions, LibraryOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any, Self

    from nvc.container.messages import ContainerConfig
    from nvc.driver.facts import NvmlGpu, NvmlSystem
    from nvc.driver.service import DriverClient
    from nvc.inject.session import ContainerSession
    from nvc.model import DeviceNode, DriverInfo, Gpu, Inventory, Selection

__all__ = [
    "Config",
    "ContainerConfig",
    "ContainerOptions",
    "ContainerSession",
    "Context",
    "DriverOptions",
    "LibraryOptions",
    "require_rights",
]

_EVERYTHING = DriverOptions()


def __getattr__(name: str) -> Any:
    """What a container needs and the host alone does not: imported while NVML is initialised, and never by ``list``."""
    if name == "ContainerConfig":
        from nvc.container.messages import ContainerConfig

        return ContainerConfig
    if name == "ContainerSession":
        from nvc.inject.session import ContainerSession

        return ContainerSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Config(Record):
    """nvc_config, with settings that the reference has only as environment variables, or not at all.

    For nvc_config_new; nvc_config_free: nothing to free.
    root, ldcache: driver root and the loader cache inside it. csv: directory of Tegra's mount lists, there too.
    uid, gid: of the NVML process; None: the overflow id for root, else the caller's. imex: channels for which
    load-kmods creates nodes. sim: directory of a simulated machine.
    timeout: seconds for one answer of a helper. cache: keep the inventory in /run/nvc. debug: log file.
    no_pivot: see ``UpdateLdcache``. inside: the caller is in the container's device cgroup already (a createContainer
    hook), to which the driver's devices may be added while NVML is queried. mps_user: uid whose MPS server containers
    may use, beside root's. dev_root, libraries, configs, lists, ignored_links: as in ``nvc.model.Host``; with a
    dev_root, CDI specs can be made and nothing can be applied to a container. wait: for the exit of helpers that have
    answered everything; False only in a process that ends itself right after the context: init reaps them then, and
    where it would not they are waited for all the same.
    """

    root: str = "/"
    ldcache: str = "/etc/ld.so.cache"
    uid: int | None = None
    gid: int | None = None
    imex: tuple[int, ...] = ()
    sim: str = ""
    timeout: float = TIMEOUT_S
    cache: bool = True
    debug: str = ""
    no_pivot: bool = False
    inside: bool = False
    csv: str = CSV_DIRECTORY
    mps_user: int = 0
    dev_root: str = ""
    libraries: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    ignored_links: tuple[str, ...] = ()
    wait: bool = True


class Context:
    """The host: what is installed, and which devices it has (nvc_context_new, nvc_init).

    Leaving the ``with`` block is nvc_shutdown. Raises InitializationError for a configuration that cannot be used.
    """

    def __init__(
        self, config: Config | None = None, options: LibraryOptions | None = None, log: Log | None = None
    ) -> None:
        self.config = config if config is not None else Config()
        self.options = options if options is not None else LibraryOptions()
        self._own_log = log is None
        self.log = log if log is not None else _open_log(self.config.debug)
        self.host = _host(self.config)
        self._inventories: dict[DriverOptions, Inventory] = {}
        self._current: Inventory | None = None
        self._platform: str | None = None
        self._begun: DriverClient | None = None
        self._ending: list[DriverClient] = []
        if self.options.load_kmods and not self.host.simulated:
            from nvc.driver.kmods import load_kmods

            # WSL's module is built in; Tegra's modules are others, and create their nodes themselves.
            if not self.platform:
                imex = not self.options.no_create_imex_channels
                load_kmods(self.host, self.config.imex, create_imex=imex, log=self.log)
        self._begin_early()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the context (nvc_shutdown, nvc_context_free). Sessions are closed on their own."""
        if self._begun is not None:
            self._begun.close()
            self._begun = None
        if self._ending:
            from rpc.process import init_reaps

            # The exit of NVML's process takes milliseconds, in which the driver closes its files.
            if self.config.wait or not init_reaps():
                while self._ending:
                    self._ending.pop().reap()
        if self._own_log:
            self.log.close()

    @property
    def platform(self) -> str:
        """WSL or TEGRA of ``nvc.model``, "" on a machine with NVIDIA's ordinary driver. Determined once."""
        if self._platform is None:
            from nvc.driver.places import platform

            self._platform = platform(self.host)
        return self._platform

    def inventory(
        self, options: DriverOptions = _EVERYTHING, meanwhile: Callable[[DriverInfo], None] | None = None
    ) -> Inventory:
        """Everything installed, from the inventory cache when it is valid.

        meanwhile: called, before NVML has answered, with the files of the version that the kernel module has.
        Raises DetectionError, InitializationError, and what ``meanwhile`` raises.
        """
        if self.config.mps_user:
            options = options.replace(mps_user=self.config.mps_user)
        found = self._inventories.get(options)
        if found is None:
            from nvc.driver.inventory import load
            from nvc.driver.places import cache_path

            # Changes of Windows' driver and of Tegra's lists cannot be detected: no cache there.
            keep = self.config.cache and not self.platform
            cache = cache_path(self.host) if keep else None
            found = load(self.host, options, lambda: self._query(options, meanwhile), cache=cache, log=self.log)
            self._inventories[options] = found
        self._current = found
        return found

    def current_inventory(self) -> Inventory:
        """The inventory of the last call of ``inventory``, or that without options."""
        return self._current if self._current is not None else self.inventory()

    def driver_info(
        self, options: DriverOptions = _EVERYTHING, meanwhile: Callable[[DriverInfo], None] | None = None
    ) -> DriverInfo:
        """Versions and files of the driver (nvc_driver_info_new; nvc_driver_info_free: nothing to free).

        meanwhile: see ``inventory``.
        """
        return self.inventory(options, meanwhile).driver

    def device_info(self, options: DriverOptions = _EVERYTHING) -> tuple[Gpu, ...]:
        """The GPUs with their MIG devices (nvc_device_info_new; nvc_device_info_free: nothing to free)."""
        return self.inventory(options).gpus

    def select(
        self,
        devices: Sequence[str],
        mig_config: str | None = None,
        mig_monitor: str | None = None,
        options: DriverOptions = _EVERYTHING,
    ) -> Selection:
        """The devices that selectors such as ``0``, ``all`` or ``GPU-...`` name.

        Raises DeviceError, MigConfigError, MigMonitorError.
        """
        from nvc.request.selection import select

        return select(self.inventory(options), devices, mig_config=mig_config, mig_monitor=mig_monitor)

    def require(self, expressions: Sequence[str], selection: Selection, options: DriverOptions = _EVERYTHING) -> None:
        """Check requirements such as ``cuda>=12.0`` for every selected GPU, for the parents of MIG devices, or once.

        Raises RequirementError for the first that fails or cannot be read.
        """
        if not expressions:
            return
        from nvc.request.requirements import Facts, check

        driver = self.inventory(options).driver
        gpus = [*selection.gpus, *(mig.gpu for mig in selection.migs)]
        facts = [Facts(driver.cuda_version, driver.nvrm_version, gpu.arch, gpu.brand) for gpu in gpus]
        for fact in facts or [Facts(driver.cuda_version, driver.nvrm_version)]:
            for expression in expressions:
                check(expression, fact)

    def nvcaps_style(self, options: DriverOptions = _EVERYTHING) -> int:
        """NVCAPS_NONE, NVCAPS_PROC or NVCAPS_DEV of ``nvc.model`` (nvc_nvcaps_style)."""
        return self.inventory(options).nvcaps_style

    def nvcaps_device_from_proc_path(self, path: str) -> DeviceNode:
        """The device node of a capability file below /proc/driver/nvidia (nvc_nvcaps_device_from_proc_path).

        Raises DetectionError.
        """
        from nvc.driver.nvcaps import node_of

        return node_of(self.host, path)

    def container(
        self, config: ContainerConfig, options: ContainerOptions = DEFAULT_CONTAINER_OPTIONS, *, early: bool = False
    ) -> ContainerSession:
        """Look a container up and open a session on it (nvc_container_new).

        options: by default those of the reference's API (standalone, utility only).
        early: return while the container is still being looked up; see ContainerSession. Raises ContainerError.
        """
        if self.host.dev_root:
            raise InitializationError(
                f"device nodes below {self.host.dev_root} cannot be given to a container here",
                hint="a root of device nodes is for CDI specs: nvc-py cdi generate --dev-root",
            )
        from nvc.container.service import start

        client = start(deadline=self.config.timeout, log=self.log, wait=self.config.wait)
        try:
            # Now that the service runs: it does not need these modules, and imports its own meanwhile.
            from nvc.inject.session import ContainerSession

            return ContainerSession(self, config, options, client, early=early)
        except BaseException:
            client.close()
            raise

    def _query(
        self, options: DriverOptions, meanwhile: Callable[[DriverInfo], None] | None
    ) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        """Query NVML, in a process without rights that ends after it. options: of the files to look for meanwhile."""
        from nvc.base.undo import Undo

        config = self.config
        with Undo() as undo:
            if config.inside:
                from nvc.driver.reach import reach

                reach(self.host, undo, self.log)
            answers = self._answers(options, meanwhile)
            problems = undo.rollback()
        if problems:
            raise InitializationError(
                f"device rules for the driver's nodes could not be removed from the container's cgroup: {problems[0]}"
            )
        return answers

    def _begin_early(self) -> None:
        """Initialise NVML while this process imports and looks at files, where no inventory is kept."""
        from nvc.driver.places import cache_path

        # A hook in the container's device cgroup cannot reach the nodes yet.
        has_inventory = self.config.cache and os.path.exists(cache_path(self.host))
        if not has_inventory and not self.config.inside:
            try:
                self._begun = self._start()
            except InitializationError:
                pass  # it will be said when NVML is queried

    def _start(self) -> DriverClient:
        from nvc.driver.service import start

        config = self.config
        return start(self.host, uid=config.uid, gid=config.gid, deadline=config.timeout, log=self.log)

    def driver(self) -> DriverClient:
        """A driver service for questions again and again, which the caller closes. Raises InitializationError."""
        client, self._begun = self._begun or self._start(), None
        return client

    def _answers(
        self, options: DriverOptions, meanwhile: Callable[[DriverInfo], None] | None
    ) -> tuple[NvmlSystem, tuple[NvmlGpu, ...]]:
        client, self._begun = self._begun or self._start(), None
        try:
            # Meanwhile NVML is initialised. What is imported here is needed after it.
            import nvc.driver.runtime
            import nvc.request.selection  # noqa: F401
            from nvc.base.record import prepare
            from nvc.driver.inventory import look_ahead

            pending = client.begin_system()
            look_ahead(self.host, options, watch=self.config.cache, meanwhile=meanwhile)
            if not pending.is_ready():
                prepare()
            with waiting("asking the driver, which takes seconds to start where nothing keeps it loaded"):
                system = client.system(pending)
                answers = system, tuple(client.gpu(index) for index in range(system.gpu_count))
        except BaseException:
            client.close()
            raise
        client.leave()
        self._ending.append(client)
        return answers


def require_rights() -> None:
    """Raise PrivilegeError without CAP_SYS_ADMIN, which only ``apply`` needs.

    Called before anything is looked up, as in the reference (libnvidia-container.md 1.7.1, step 2).
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
    from nvc.base.log import open_log

    return open_log(path)


def _host(config: Config) -> Host:
    if config.sim:
        from nvc.sim import host

        return host(config.sim).replace(
            csv=config.csv,
            libraries=config.libraries,
            configs=config.configs,
            lists=config.lists,
            ignored_links=config.ignored_links,
        )
    for name, value in (("root", config.root), ("ldcache", config.ldcache), ("dev-root", config.dev_root or "/")):
        if not value.startswith("/"):
            raise InitializationError(f"invalid {name}: {value!r}", hint=f"--{name} takes an absolute path")
    return Host(
        root=config.root,
        ldcache=config.ldcache,
        csv=config.csv,
        dev_root="" if config.dev_root.rstrip("/") == config.root.rstrip("/") and config.dev_root else config.dev_root,
        libraries=config.libraries,
        configs=config.configs,
        lists=config.lists,
        ignored_links=config.ignored_links,
    )
