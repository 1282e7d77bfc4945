"""The order in which a container's wishes become a plan: the one that nvidia-container-cli has.

Source: libnvidia-container.md 1.7.1.

The command line and the hook say what they want as ``Wishes``; what is done about it is written here and nowhere else.
"""

from __future__ import annotations

import os

from nvc.model import TEGRA, DriverOptions
from nvc.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.api import ContainerSession, Context
    from nvc.model import Selection


#: Requirement -> ``DriverOptions.csv_all``.
_CSV_MOUNTS = {"csv-mounts=all": True, "csv-mounts=base-only": False}


#: What the names of the variables that may ask for a share begin with (``nvc.share.dialects`` has them whole).
SHARE_VARIABLES = (
    *("NVC_SHARE", "CUDA_DEVICE_", "CUDA_TASK_PRIORITY", "CUDA_OVERSUBSCRIBE", "CUDA_DISABLE_CONTROL"),
    *("GPU_CORE_UTILIZATION_POLICY", "ALIYUN_COM_GPU_", "CGPU_DISABLE", "NVIDIA_GPU_MEMORY_LIMIT"),
)
#: The node's configuration, whose section [share] has the rules for shares.
NODE_CONFIG = "/etc/nvc/config.toml"


class ShareWish(Record):
    """Who may have asked for a share of the GPUs, in the order in which they count (``nvc.share.policy``).

    annotation, option: texts, "" for none. environment: the container's variables. config: file with the node's rules,
    "" for the usual one. container: id that the runtime gave the container, or "". bundle: absolute path, "" where
    its config.json was not read. seccomp: linux.seccomp of that, where it names a listener. guard_off: its
    annotation nvc.guard says off.
    """

    annotation: str = ""
    option: str = ""
    environment: dict[str, str] = {}
    config: str = ""
    container: str = ""
    bundle: str = ""
    seccomp: dict[str, Any] = {}
    guard_off: bool = False

    def may_matter(self) -> bool:
        """Whether anything of it could give a share: cheap, and yes rather than no.

        Raises InputError for a broken file: its rules, which may be shares, are not known.
        """
        if self.annotation or self.option:
            return True
        if any(name.startswith(SHARE_VARIABLES) for name in self.environment):
            return True
        return _has_rules(self.config)


class Wishes(Record):
    """What one container is to get.

    devices: selectors for ``nvc.selection``, () for the driver without a GPU. mig_config, mig_monitor: selectors, None
    when nobody asked. imex: channel numbers. requirements: expressions, all of which must hold. driver:
    what of the driver is left out. share: who asks for a share, None: no share whatever the node says.
    """

    devices: tuple[str, ...] = ()
    mig_config: str | None = None
    mig_monitor: str | None = None
    imex: tuple[int, ...] = ()
    requirements: tuple[str, ...] = ()
    driver: DriverOptions = DriverOptions()
    share: ShareWish | None = None


def plan(wishes: Wishes, context: Context, session: ContainerSession) -> None:
    """Look up, select, check, and add everything to the session's plan. Reads only: the container is as it was.

    Raises DetectionError, InitializationError, DeviceError, MigConfigError, MigMonitorError, RequirementError,
    InputError for a share that cannot be, and MountError for a device that the host does not have.
    """
    wishes = _csv_mounts(wishes, context)
    options = wishes.driver
    driver = context.driver_info(options)
    selection = context.select(wishes.devices, wishes.mig_config, wishes.mig_monitor, options)
    context.require(wishes.requirements, selection, options)
    session.mount_driver(driver)
    mount_devices(session, selection)
    for channel in wishes.imex:
        session.mount_imex_channel(channel)
    if wishes.share is not None and wishes.share.may_matter():
        session.share(wishes.share, selection)
    session.update_ldcache()


def _has_rules(config: str) -> bool:
    """Whether the node has rules for shares. config: as in ``ShareWish``. Raises InputError."""
    if not config and not os.path.lexists(NODE_CONFIG):
        return False  # nothing more is imported
    from nvc import configfile

    name = NODE_CONFIG if not config or configfile.is_toolkits(config) else config
    return bool(configfile.load(name, must_exist=False).get("share"))


def mps_user(config: str = NODE_CONFIG) -> int:
    """The uid of key ``user`` in section [mps] of the node's configuration: whose MPS server is used beside root's.

    0 without one, and where the caller may not read the file. Raises InputError for a file that is not as it should be.
    """
    if not os.access(config, os.R_OK):
        return 0
    from nvc import configfile
    from nvc.userspec import user_id

    user = configfile.load(config).get("mps", {}).get("user", "")
    return user_id(user, f"{config}: mps.user") if user else 0


def _csv_mounts(wishes: Wishes, context: Context) -> Wishes:
    """On Tegra ``csv-mounts=...`` among the requirements is no condition: it chooses the mount lists.

    Source: libnvidia-container.md 2.5.

    Elsewhere it stays what it looks like, and is refused.
    """
    if not any(text in _CSV_MOUNTS for text in wishes.requirements):
        return wishes
    if context.platform != TEGRA:
        return wishes
    csv_all = wishes.driver.csv_all or any(_CSV_MOUNTS.get(text) for text in wishes.requirements)
    return wishes.replace(
        requirements=tuple(text for text in wishes.requirements if text not in _CSV_MOUNTS),
        driver=wishes.driver.replace(csv_all=csv_all),
    )


def mount_devices(session: ContainerSession, selection: Selection) -> None:
    """Plan the selected GPUs and MIG devices."""
    for gpu in selection.gpus:
        session.mount_device(gpu)
    # Who may manage MIG gets the whole tree of capabilities, which holds those of each device.
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
