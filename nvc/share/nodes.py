"""How the driver's nodes are recognised in a container: by number, or by file on the simulated machine."""

from __future__ import annotations

import os
import stat

from nvc.share.limits import NODE_CONTROL, NODE_GPU, NODE_UVM, LimitsNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvc.model import DeviceNode, Gpu, Host

#: Name of a node that is no GPU's -> kind.
KINDS = {"/dev/nvidiactl": NODE_CONTROL, "/dev/nvidia-uvm": NODE_UVM, "/dev/nvidia-uvm-tools": NODE_UVM}


def identities(host: Host, common: Iterable[DeviceNode], gpus: Iterable[Gpu]) -> tuple[LimitsNode, ...]:
    """The nodes of the driver that matter to a share, those of ``gpus`` in their order."""
    found = [_identity(host, KINDS[node.path], node) for node in common if node.path in KINDS]
    return (*found, *(_identity(host, NODE_GPU, gpu.node) for gpu in gpus))


def _identity(host: Host, kind: int, node: DeviceNode) -> LimitsNode:
    try:
        status = os.stat(host.root.rstrip("/") + node.path)
    except OSError:
        # Mounting it will fail and say what is wrong with it.
        return LimitsNode(kind, node.minor, os.makedev(node.major, node.minor))
    if stat.S_ISCHR(status.st_mode):
        return LimitsNode(kind, node.minor, status.st_rdev)
    return LimitsNode(kind, node.minor, status.st_dev, status.st_ino)
