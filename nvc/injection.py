"""The order in which a container's wishes become a plan: the one that nvidia-container-cli has (specification 1.7.1).

The command line and the hook say what they want as ``Wishes``; what is done about it is written here and nowhere else.
"""

from __future__ import annotations

import os

from nvc.model import TEGRA
from nvc.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.api import ContainerSession, Context
    from nvc.model import Selection


#: Requirement -> option of ``Context.driver_info``.
_CSV_MOUNTS = {"csv-mounts=all": "csv-all", "csv-mounts=base-only": ""}


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
    "" for the usual one. container: id that the runtime gave the container, or "". guarded: the agent holds the share
    from outside, so no library has to be preloaded for it.
    """

    annotation: str = ""
    option: str = ""
    environment: dict[str, str] = {}
    config: str = ""
    container: str = ""
    guarded: bool = False

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
    when nobody asked. imex: channel numbers. requirements: expressions, all of which must hold. driver_words:
    options of ``Context.driver_info`` ("no-mps"). share: who asks for a share, None: no share whatever the node says.
    """

    devices: tuple[str, ...] = ()
    mig_config: str | None = None
    mig_monitor: str | None = None
    imex: tuple[int, ...] = ()
    requirements: tuple[str, ...] = ()
    driver_words: str = ""
    share: ShareWish | None = None


def plan(wishes: Wishes, context: Context, session: ContainerSession) -> None:
    """Look up, select, check, and add everything to the session's plan. Reads only: the container is as it was.

    Raises DetectionError, InitializationError, DeviceError, MigConfigError, MigMonitorError, RequirementError,
    InputError for a share that cannot be, and MountError for a device that the host does not have.
    """
    wishes = _csv_mounts(wishes, context)
    words = wishes.driver_words
    driver = context.driver_info(words)
    selection = context.select(wishes.devices, wishes.mig_config, wishes.mig_monitor, words)
    context.require(wishes.requirements, selection, words)
    session.mount_driver(driver)
    mount_devices(session, selection)
    for channel in wishes.imex:
        session.mount_imex_channel(channel)
    if wishes.share is not None and wishes.share.may_matter():
        session.share(wishes.share, selection)
    session.update_ldcache()


def _has_rules(config: str) -> bool:
    """Whether the node has rules for shares. config: as in ``ShareWish``. Raises InputError."""
    if not config:
        try:
            os.lstat(NODE_CONFIG)
        except FileNotFoundError:
            return False  # nothing more is imported
        except OSError:
            pass  # a directory that may not be looked into: reading will tell
    from nvc import configfile

    name = NODE_CONFIG if not config or configfile.is_toolkits(config) else config
    return bool(configfile.load(name, must_exist=False).get("share"))


def _csv_mounts(wishes: Wishes, context: Context) -> Wishes:
    """On Tegra ``csv-mounts=...`` among the requirements is no condition: it chooses the mount lists (spec 2.5).

    Elsewhere it stays what it looks like, and is refused.
    """
    if not any(text in _CSV_MOUNTS for text in wishes.requirements):
        return wishes
    if context.platform != TEGRA:
        return wishes
    words = [wishes.driver_words, *(_CSV_MOUNTS.get(text, "") for text in wishes.requirements)]
    return wishes.replace(
        requirements=tuple(text for text in wishes.requirements if text not in _CSV_MOUNTS),
        driver_words=" ".join(filter(None, words)),
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
