"""The files that a running process has open. It may close any of them between the listing and the look at it."""

import contextlib
import os
from typing import NamedTuple


class OpenFile(NamedTuple):
    name: str
    """What the link in /proc/PID/fd says."""
    flags: str
    """Of open(2), in octal."""
    inode: int


def opened(pid: int) -> dict[int, OpenFile]:
    """By descriptor, without the standard streams. Raises OSError where the process is gone."""
    found = {}
    for number in map(int, os.listdir(f"/proc/{pid}/fd")):
        if number > 2:
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                with open(f"/proc/{pid}/fdinfo/{number}") as lines:
                    info = dict(line.rstrip("\n").split(":\t", 1) for line in lines if ":\t" in line)
                place = f"/proc/{pid}/fd/{number}"
                found[number] = OpenFile(os.readlink(place), info["flags"], os.stat(place).st_ino)
    return found


def names(pid: int) -> list[str]:
    """Of all its open files; none is asked about itself, which may take long. Raises OSError."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found
