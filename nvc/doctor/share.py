"""Checks of what enforces shares: the libraries that containers preload, the agent, and the processes that guard."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc import __version__
from nvc.base.errors import NvcError, PrivilegeError
from nvc.doctor.driver import version
from nvc.doctor.finding import Finding, note, ok, skipped, warning
from nvc.doctor.probe import Place
from nvc.share import abi, preload

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


def driver(probe: Probe) -> Iterator[Finding]:
    """Whether the loaded driver is one that shares are held with."""
    found = version(probe)
    if not found:
        return
    which = f"drivers {abi.FIRST} to {abi.BEYOND - 1} are known"
    if abi.knows(found):
        yield ok(f"shares are held with driver {found}")
    else:
        yield warning(
            f"driver {found} is not known to shares ({which}): no guard, and containers with cap, weight, priority or "
            "group do not start",
            "# install a driver that is known, or a newer nvc-py; or see [share] unknown-driver of config.toml",
        )


def agent(probe: Probe) -> Iterator[Finding]:
    """The agent: that it runs, answers, and is the one that is installed."""
    try:
        found = probe.ask_agent()
    except PrivilegeError as error:
        yield note(f"what the agent does is not known: {error}", "sudo nvc-py doctor --only share")
        return
    except NvcError as error:
        yield warning(f"an agent was started, and does not answer: {error}", "sudo systemctl restart nvc-agent")
        return
    if found is None:
        yield note(
            "no agent runs: the preloaded library enforces shares, without the guard",
            "sudo systemctl enable --now nvc-agent",
        )
    elif found.version != __version__:
        yield warning(
            f"the agent is of version {found.version}, installed is {__version__}",
            "sudo systemctl restart nvc-agent  # running containers keep their guards",
        )
    else:
        yield ok(f"the agent answers (version {found.version})")


def guards(probe: Probe) -> Iterator[Finding]:
    """Supervisors of running containers: an upgrade does not replace them, nor repair anything there."""
    try:
        found = probe.ask_agent()
    except NvcError:
        return  # ``agent`` says so
    if found is None or not found.guards:
        yield skipped("no guarded container")
        return
    other = {container: build for container, build in sorted(found.guards.items()) if build != __version__}
    for container, build in other.items():
        yield warning(
            f"container {container[:12]}: its guard is of version {build or 'unknown'}, installed is {__version__}",
            f"# start container {container[:12]} again",
        )
    if not other:
        yield ok(f"{len(found.guards)} guarded containers, all by version {__version__}")
