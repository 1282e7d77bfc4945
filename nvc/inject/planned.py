"""What a container shall get, collected: the part of a session that needs no container's process."""

from __future__ import annotations

from nvc.base.errors import MountError
from nvc.container import plan
from nvc.request.capabilities import DriverCapabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.container.operations import Operation
    from nvc.inject.api import Context
    from nvc.model import Container, DriverInfo, Gpu, MigDevice, ProcFile
    from nvc.request.options import ContainerOptions


class Planned:
    """The ``mount_*`` methods only add to ``plan``. Of a subclass: ``container``, and what is done with the plan."""

    def __init__(self, context: Context, options: ContainerOptions) -> None:
        self._context = context
        self._operations: list[Operation] = []
        self._made_scope: plan.Scope | None = None
        self._shared = False
        self._driver: DriverInfo | None = None
        #: A driver without nodes and CUDA version, what was planned of its files, and the copies for /proc.
        self._planned_ahead: tuple[DriverInfo, tuple[Operation, ...], tuple[ProcFile, ...]] | None = None
        self.options = options
        self._capabilities = DriverCapabilities(options.capabilities)

    @property
    def container(self) -> Container:
        """The container that the plan is for."""
        raise NotImplementedError

    @property
    def _scope(self) -> plan.Scope:
        if self._made_scope is None:
            from nvc.driver.served import served_nodes

            context, options = self._context, self.options
            self._made_scope = plan.Scope(
                self.container,
                self._capabilities,
                devbind=not options.no_devbind,
                cgroups=not options.no_cgroups,
                proc=plan.SIMULATED_PROC if context.host.simulated else plan.PROC_DRIVER,
                served=served_nodes(context.host),
                shared=self._shared,
            )
        return self._made_scope

    def mount_driver(self, driver: DriverInfo) -> None:
        """Plan the driver's files, common nodes and /proc/driver/nvidia (nvc_driver_mount)."""
        self._driver = driver
        ahead = self._planned_ahead
        if ahead is not None and ahead[0] == driver.replace(cuda_version="", nodes=()):
            _, files, copies = ahead
        else:
            files, copies = plan.driver_files(self._scope, driver), self._proc_files(driver)
        self._operations += plan.driver_cover(self._scope, driver, copies)
        self._operations += files
        self._operations += plan.driver_nodes(self._scope, driver)

    def _proc_files(self, driver: DriverInfo) -> tuple[ProcFile, ...]:
        from nvc.driver.runtime import read_proc_files

        return () if driver.platform else read_proc_files(self._context.host, log=self._context.log)

    def mount_device(self, gpu: Gpu) -> None:
        """Plan a GPU (nvc_device_mount)."""
        self._operations += plan.device_mount(self._scope, gpu)

    def mount_mig_access(self, mig: MigDevice, gpu: Gpu) -> None:
        """Plan the right to use a MIG device of ``gpu`` (nvc_mig_device_access_caps_mount)."""
        if mig not in gpu.mig_devices:
            raise MountError(f"invalid argument: {mig.uuid} is not a MIG device of {gpu.uuid}")
        self._operations += plan.mig_access(self._scope, mig)

    def mount_mig_config(self) -> None:
        """Plan the right to configure MIG (nvc_mig_config_global_caps_mount). Raises MountError without nvcaps."""
        nvcap = self._context.current_inventory().mig_config
        if nvcap is None:
            raise MountError("stat failed: /proc/driver/nvidia/capabilities/mig/config: no such file or directory")
        self._operations += plan.mig_config(self._scope, nvcap)

    def mount_mig_monitor(self) -> None:
        """Plan the right to monitor MIG (nvc_mig_monitor_global_caps_mount). Raises MountError without nvcaps."""
        nvcap = self._context.current_inventory().mig_monitor
        if nvcap is None:
            raise MountError("stat failed: /proc/driver/nvidia/capabilities/mig/monitor: no such file or directory")
        self._operations += plan.mig_monitor(self._scope, nvcap)

    def mount_device_mig_caps(self, gpu: Gpu) -> None:
        """Plan the cgroup rules for all nvcaps of a GPU (nvc_device_mig_caps_mount).

        Raises DetectionError when the host's nvcaps are not known.
        """
        from nvc.driver.runtime import check_mig_nodes

        check_mig_nodes(self._context.current_inventory(), (gpu,))
        self._operations += plan.device_mig_caps(self._scope, gpu)

    def mount_imex_channel(self, channel: int) -> None:
        """Plan an IMEX channel (nvc_imex_channel_mount). Raises MountError when the host does not have it."""
        from nvc.driver.runtime import imex_channels

        for found in imex_channels(self._context.host, (channel,)):
            self._operations += plan.imex_channel(self._scope, found)

    @property
    def plan(self) -> tuple[Operation, ...]:
        """Everything planned so far, merged: what ``apply`` will do and ``--dry-run`` prints."""
        return plan.merge(self._operations)
