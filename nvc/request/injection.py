"""What a container asks for, as one value: the injection request, with the sources of its share."""

from __future__ import annotations

import os

from nvc.base.record import Record
from nvc.model import DriverOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What the names of the variables that may ask for a share begin with (``nvc.share.dialects`` has them whole).
SHARE_VARIABLES = (
    *("NVC_SHARE", "CUDA_DEVICE_", "CUDA_TASK_PRIORITY", "CUDA_OVERSUBSCRIBE", "CUDA_DISABLE_CONTROL"),
    *("GPU_CORE_UTILIZATION_POLICY", "ALIYUN_COM_GPU_", "CGPU_DISABLE", "NVIDIA_GPU_MEMORY_LIMIT"),
    *("CUDA_MEM_", "CUDA_CORE_", "GPU_MEM_PER_DEVICE", "GPU_UTIL_PER_DEVICE", "CUDA_MPS_PINNED_", "CUDA_MPS_ACTIVE_"),
)
#: So do limits of systems that are not known.
_LIMIT = "_LIMIT"
#: The node's configuration, whose section [share] has the rules for shares.
NODE_CONFIG = "/etc/nvc/config.toml"


class ShareRequest(Record):
    """The sources of a container's share of its GPUs; ``nvc.share.sources`` has their order.

    annotation, option: texts, "" for none. environment: the container's variables. config: file with the node's rules,
    "" for the usual one. container: id that the runtime gave the container, or "". bundle: absolute path, "" where
    its config.json was not read. seccomp: linux.seccomp of that, where it names a listener. guard_off: its
    annotation nvc.guard says off. fixed: specs of --share-fixed, of every hook of the container. name: by which
    its engine calls it (``hook.bundle.Bundle``), for people.
    """

    annotation: str = ""
    option: str = ""
    environment: dict[str, str] = {}
    config: str = ""
    container: str = ""
    bundle: str = ""
    seccomp: dict[str, Any] = {}
    guard_off: bool = False
    fixed: tuple[str, ...] = ()
    name: str = ""

    def may_matter(self) -> bool:
        """Whether anything of it could give a share: cheap, and yes rather than no.

        Raises InputError for a broken file: its rules, which may be shares, are not known.
        """
        if self.annotation or self.option or self.fixed:
            return True
        if any(name.startswith(SHARE_VARIABLES) or _LIMIT in name for name in self.environment):
            return True
        return _has_rules(self.config)


class InjectionRequest(Record):
    """What a container is to get.

    devices: selectors for ``nvc.request.selection``, () for the driver without a GPU. mig_config, mig_monitor:
    selectors, None where not requested. imex: channel numbers. requirements: expressions, all of which must hold.
    driver: what of the driver is left out. share: the share request, None: no share whatever the node's rules are.
    """

    devices: tuple[str, ...] = ()
    mig_config: str | None = None
    mig_monitor: str | None = None
    imex: tuple[int, ...] = ()
    requirements: tuple[str, ...] = ()
    driver: DriverOptions = DriverOptions()
    share: ShareRequest | None = None


def _has_rules(config: str) -> bool:
    """Whether the node has rules for shares. config: as in ``ShareRequest``. Raises InputError."""
    if not config:
        try:
            os.lstat(NODE_CONFIG)
        except FileNotFoundError:
            return False  # nothing more is imported
        except OSError:
            pass  # a directory that cannot be searched: reading the file gives the error
    from nvc.base import config_file

    name = NODE_CONFIG if not config or config_file.is_toolkits(config) else config
    return bool(config_file.load(name, must_exist=False).get("share"))


def mps_user(config: str = NODE_CONFIG) -> int:
    """The uid of key ``user`` in section [mps] of the node's configuration: whose MPS server is used beside root's.

    0 without one, and where the caller may not read the file. Raises InputError for a file that is not as it should be.
    """
    if not os.access(config, os.R_OK):
        return 0
    from nvc.base import config_file
    from nvc.request.userspec import user_id

    user = config_file.load(config).get("mps", {}).get("user", "")
    return user_id(user, f"{config}: mps.user") if user else 0
