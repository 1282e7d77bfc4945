"""A stand-in for ``nvc.inject.api``: answers from an Inventory and writes down what it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from nvc.base.log import Log
from nvc.container.operations import Symlink
from nvc.inject import api
from nvc.model import DriverInfo, DriverOptions, Gpu, Inventory, MigDevice, Selection
from nvc.request.options import DEFAULT_CONTAINER_OPTIONS, ContainerOptions, LibraryOptions
from nvc.request.requirements import Facts, check
from nvc.request.selection import select

if TYPE_CHECKING:
    from nvc.container.operations import Operation

_EVERYTHING = DriverOptions()


class FakeLibrary:
    """``failures`` maps a call's name to what it raises. ``calls`` are those with an effect, in order."""

    Config = api.Config
    ContainerConfig = api.ContainerConfig

    def __init__(self, inventory: Inventory, failures: dict[str, BaseException] | None = None) -> None:
        self.found = inventory
        self.failures = failures or {}
        self.calls: list[tuple[Any, ...]] = []
        self.configs: list[api.Config] = []

    def Context(self, config: api.Config, options: LibraryOptions, log: Log | None = None) -> FakeContext:
        self.configs.append(config)
        self.did("init", options)
        return FakeContext(self, log)

    def require_rights(self) -> None:
        self.did("rights")

    def did(self, call: str, *arguments: Any) -> None:
        self.calls.append((call, *arguments))
        if call in self.failures:
            raise self.failures[call]


class FakeContext:
    def __init__(self, library: FakeLibrary, log: Log | None) -> None:
        self.library = library
        self.log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.library.did("shutdown")

    def inventory(
        self, options: DriverOptions = _EVERYTHING, meanwhile: Callable[[DriverInfo], None] | None = None
    ) -> Inventory:
        self.library.did("inventory", options)
        return self.library.found

    def driver_info(
        self, options: DriverOptions = _EVERYTHING, meanwhile: Callable[[DriverInfo], None] | None = None
    ) -> DriverInfo:
        return self.inventory(options).driver

    def device_info(self, options: DriverOptions = _EVERYTHING) -> tuple[Gpu, ...]:
        return self.inventory(options).gpus

    def select(
        self,
        devices: Sequence[str],
        mig_config: str | None = None,
        mig_monitor: str | None = None,
        options: DriverOptions = _EVERYTHING,
    ) -> Selection:
        return select(self.inventory(options), devices, mig_config=mig_config, mig_monitor=mig_monitor)

    def require(self, expressions: Sequence[str], selection: Selection, options: DriverOptions = _EVERYTHING) -> None:
        driver = self.driver_info(options)
        for expression in expressions:
            check(expression, Facts(driver.cuda_version, driver.nvrm_version))
        self.library.did("require", tuple(expressions))

    def container(
        self, config: api.ContainerConfig, options: ContainerOptions = DEFAULT_CONTAINER_OPTIONS, *, early: bool = False
    ) -> FakeSession:
        self.library.did("container", config, options)
        return FakeSession(self.library)


class FakeSession:
    def __init__(self, library: FakeLibrary) -> None:
        self.library = library

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.library.did("container_free")

    def mount_driver(self, driver: DriverInfo) -> None:
        self.library.did("driver")

    def mount_device(self, gpu: Gpu) -> None:
        self.library.did("device", gpu.index)

    def mount_mig_access(self, mig: MigDevice, gpu: Gpu) -> None:
        self.library.did("mig_access", gpu.index, mig.index)

    def mount_mig_config(self) -> None:
        self.library.did("mig_config")

    def mount_mig_monitor(self) -> None:
        self.library.did("mig_monitor")

    def mount_device_mig_caps(self, gpu: Gpu) -> None:
        self.library.did("device_mig_caps", gpu.index)

    def mount_imex_channel(self, channel: int) -> None:
        self.library.did("imex_channel", channel)

    def update_ldcache(self) -> None:
        self.library.did("ldcache")

    @property
    def plan(self) -> tuple[Operation, ...]:
        return (Symlink("/usr/lib64/libcuda.so", "libcuda.so.1"),)

    def begin_apply(self, driver: DriverInfo) -> None:
        """Never called: nothing waits for NVML here."""
        raise NotImplementedError

    def apply(self, *, last: bool = False) -> None:
        self.library.did("apply")
