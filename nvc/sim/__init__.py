"""The simulated machine: a driver root, /proc and /dev trees made from a description. Product code.

What belongs here: descriptions of machines and the making of their files. Not here: anything that looks at a machine
(``nvc.driver`` does, and cannot tell a simulated one from a real one). It proves logic; only a run on a GPU proves
the product.
"""

from __future__ import annotations

import os

from nvc.base.errors import InputError, reason
from nvc.driver.locate import open_file
from nvc.model import Host

#: The description that the simulated NVML reads; its presence makes a directory a simulated machine
#: (native/sim/machine.h, MACHINE_FILE).
MACHINE_FILE = "etc/nvc-sim/machine"
_HINT = "make one with: nvc-py sim create DIR --machine h200   (nvc-py sim list names the others)"


def host(directory: str) -> Host:
    """The simulated machine in ``directory``, as a host for discovery.

    Raises InputError when the directory is not a simulated machine or cannot be read.
    """
    path = os.path.join(directory, MACHINE_FILE)
    try:
        descriptor = open_file(path)
        try:
            head = os.read(descriptor, 4096).decode("ascii", "replace")
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError) as error:
        why = "is not a simulated machine" if os.path.isdir(directory) else "is not a directory"
        raise InputError(f"{directory} {why}", hint=_HINT) from error
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from error
    lines = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    if "nvc-sim-machine" not in lines or not lines.get("name"):
        raise InputError(f"{path} is not the description of a simulated machine", hint=_HINT)
    root = os.path.realpath(directory)
    return Host(root=root, system=root, simulated=lines["name"])
