"""Where the programs of native/supervisor are."""

from __future__ import annotations

import os

from nvc.base.errors import InitializationError

MONITOR, SUPERVISOR = "nvc-monitor", "nvc-supervisor"


def find(program: str) -> str:
    """The path of a program of native/supervisor: nvc/linux where it is installed, build/native in a checkout.

    In a wheel it is beside the packages. Raises InitializationError when it is in none of these places.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    above = os.path.dirname(package)
    for path in (f"{package}/linux/{program}", f"{package}/native/{program}", f"{above}/build/native/{program}"):
        if os.path.exists(path):
            return path
    raise InitializationError(f"{program} is not installed", hint="run `make native`, or install the package again")
