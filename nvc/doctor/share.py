"""Checks of the libraries that containers with a share preload."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc.doctor.finding import Finding, ok, warning
from nvc.doctor.probe import Place
from nvc.share import preload

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

_FIX = "# reinstall nvc-py: make install, or its package"


def libraries(probe: Probe) -> Iterator[Finding]:
    """The installed directory: every platform's library exists, and containers may read it."""
    if not probe.libraries:
        yield warning("the preloaded libraries are not installed: a container with a share fails", _FIX)
        return
    machine = os.uname().machine
    words, narrow = preload.PLATFORMS.get(machine, ((), ()))
    wrong = False
    for word in (machine, *words, *narrow):
        for name in preload.LIBRARIES:
            place = Place("/", f"{probe.libraries}/{word}/{name}")
            found = place.status()
            if found is None or not stat.S_ISREG(found.st_mode):
                wrong = True
                yield warning(f"{place} is missing", _FIX)
            elif found.st_mode & 0o444 != 0o444:
                wrong = True
                yield warning(f"{place} cannot be read by every user in a container", f"sudo chmod a+r {place}")
    if not wrong:
        yield ok(f"{probe.libraries} has the libraries for every platform of {machine}")
