"""The share step of a container's start, alone: its entry in the store."""

from __future__ import annotations

import os

from nvc.base.log import open_log
from nvc.base.undo import Undo
from nvc.container import share_files
from nvc.container.lookup import Located
from nvc.container.operations import ShareFiles
from nvc.model import Container
from nvc.share.limits import Limits
from nvc.share.model import Room


def start(
    shares: str,
    key: str,
    rootfs: str,
    limits: Limits,
    rooms: tuple[Room, ...],
    agent: str,
    undo: Undo | None = None,
    pid: int = 0,
) -> bool:
    """Of a container with this process as its first one, or that with ``pid``. As ``share_files.make``."""
    found = os.stat(rootfs)
    container = Container(pid or os.getpid(), rootfs, True, "", "", "", "", "", 0, 0)
    located = Located(container, None, None, None, (found.st_dev, found.st_ino))
    operation = ShareFiles(shares, key, key, limits, (), "", rooms=rooms, agent=agent)
    return share_files.make(operation, located, Undo() if undo is None else undo, open_log(""))
