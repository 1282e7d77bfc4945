"""Device nodes that belong to no GPU, with the numbers of /proc/devices and of the nodes themselves.

Source: libnvidia-container.md 3.7.
"""

from __future__ import annotations

import os
import stat

from nvc.base.errors import DetectionError, reason
from nvc.driver import tables
from nvc.driver.locate import is_missing, status
from nvc.model import DeviceNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.model import DriverOptions


def find_nodes(
    root: str, majors: dict[str, int], options: DriverOptions, served: tuple[str, ...] = ()
) -> tuple[list[DeviceNode], list[str]]:
    """The common nodes that exist, in the table's order, and warnings.

    served: paths that are files of a simulated machine's manager, with no number of their own: they get the driver's.

    A node whose number is not the driver's is skipped: another driver may have that number now (uvm's is assigned when
    the module is loaded), and the container would get access to its device. Raises DetectionError.
    """
    nodes, warnings = [], []
    for row in tables.NODES:
        if row.option and getattr(options, row.option):
            continue
        if row.assumed:
            nodes.append(DeviceNode(row.path, row.major, row.minor))
            continue
        try:
            found = status(root, row.path)
        except OSError as error:
            if not is_missing(error):
                raise DetectionError(f"stat failed: {row.path}: {reason(error)}") from error
            warnings.append(f"missing device {row.path}")
            continue
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        expected = row.major if row.major >= 0 else majors.get(row.major_name, -1)
        if row.path in served and expected >= 0:
            nodes.append(DeviceNode(row.path, expected, row.minor))
        elif not stat.S_ISCHR(found.st_mode):
            warnings.append(f"skipping device {row.path}: not a character device")
        elif (major, minor) != (expected, row.minor):
            now = f"the driver's is {expected}:{row.minor}" if expected >= 0 else f"{row.major_name} is not loaded"
            warnings.append(f"skipping device {row.path}: stale, it is {major}:{minor} and {now}")
        else:
            nodes.append(DeviceNode(row.path, major, minor))
    return nodes, warnings
