"""Device nodes that are files: a simulated machine's, when a manager serves them (nvc.sim.serving)."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import Host


def served_nodes(host: Host) -> tuple[str, ...]:
    """Container paths ("/dev/nvidiactl") of the nodes that are served, sorted; none on a real machine.

    Such a node is a regular file, where the machine otherwise has a character device without a driver.
    """
    if not host.simulated:
        return ()
    try:
        names = sorted(name for name in os.listdir(f"{host.root}/dev") if name.startswith("nvidia"))
    except OSError:
        return ()
    return tuple(f"/dev/{name}" for name in names if _is_file(f"{host.root}/dev/{name}"))


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
