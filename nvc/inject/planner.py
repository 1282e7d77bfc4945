"""The order in which an injection request becomes a plan: the one that nvidia-container-cli has.

Source: libnvidia-container.md 1.7.1.

The command line and the hook state it as ``nvc.request.injection.InjectionRequest``.
"""

from __future__ import annotations

from nvc.model import TEGRA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.inject.api import ContainerSession, Context
    from nvc.model import Selection
    from nvc.request.injection import InjectionRequest


#: Requirement -> ``DriverOptions.csv_all``.
_CSV_MOUNTS = {"csv-mounts=all": True, "csv-mounts=base-only": False}


def plan(request: InjectionRequest, context: Context, session: ContainerSession, *, applies: bool = False) -> None:
    """Look up, select, check, and add everything to the session's plan. Reads only: the container is as it was.

    applies: ``session.apply`` follows. Where NVML is asked, the driver's files are given to the container meanwhile;
    the session takes them back unless it is applied.
    Raises DetectionError, InitializationError, DeviceError, MigConfigError, MigMonitorError, RequirementError,
    InputError for a share that cannot be, and MountError for a device that the host does not have.
    """
    request = _csv_mounts(request, context)
    options = request.driver
    has_share = request.share is not None and request.share.may_matter()
    # What a share puts first depends on the GPUs.
    if applies and not has_share:
        driver = context.driver_info(options, session.begin_apply)
    else:
        driver = context.driver_info(options)
    selection = context.select(request.devices, request.mig_config, request.mig_monitor, options)
    context.require(request.requirements, selection, options)
    if request.share is not None and has_share:
        session.share(request.share, selection)
    session.mount_driver(driver)
    mount_devices(session, selection)
    for channel in request.imex:
        session.mount_imex_channel(channel)
    session.update_ldcache()


def _csv_mounts(request: InjectionRequest, context: Context) -> InjectionRequest:
    """On Tegra ``csv-mounts=...`` among the requirements is no condition: it chooses the mount lists.

    Source: libnvidia-container.md 2.5.

    Elsewhere it stays what it looks like, and is refused.
    """
    if not any(text in _CSV_MOUNTS for text in request.requirements):
        return request
    if context.platform != TEGRA:
        return request
    csv_all = request.driver.csv_all or any(_CSV_MOUNTS.get(text) for text in request.requirements)
    return request.replace(
        requirements=tuple(text for text in request.requirements if text not in _CSV_MOUNTS),
        driver=request.driver.replace(csv_all=csv_all),
    )


def mount_devices(session: ContainerSession, selection: Selection) -> None:
    """Plan the selected GPUs and MIG devices."""
    for gpu in selection.gpus:
        session.mount_device(gpu)
    # The right to manage MIG brings the whole tree of capabilities, which holds those of each device.
    if not selection.mig_config and not selection.mig_monitor:
        for chosen in selection.migs:
            session.mount_mig_access(chosen.mig, chosen.gpu)
    if selection.mig_config:
        session.mount_mig_config()
    for gpu in selection.mig_config:
        session.mount_device_mig_caps(gpu)
    if selection.mig_monitor:
        session.mount_mig_monitor()
    for gpu in selection.mig_monitor:
        session.mount_device_mig_caps(gpu)
