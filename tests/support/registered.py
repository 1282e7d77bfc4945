"""Containers registered with an agent as nvc-runtime does it, for tests whose containers no runtime makes."""

from __future__ import annotations

import os
from pathlib import Path

from nvc.agent.registrations import Registration, Registrations
from nvc.share.protocol import Client


def register(registrations: Registrations, container: str, pid: int, bundle: str = "/") -> Registration:
    """A registration by this process, bound to the container's first process ``pid``. Raises NvcError."""
    at = os.stat(bundle)
    registrations.add(container, bundle, at.st_dev, at.st_ino, os.getpid())
    return registrations.bind(container, at.st_dev, at.st_ino, pid)


def ask(control: str | Path, container: str, pid: int = 0, bundle: str = "/") -> None:
    """The same on an agent's control socket; pending without a pid. Raises NvcError."""
    at = os.stat(bundle)
    fields = {"container": container, "device": at.st_dev, "inode": at.st_ino}
    with Client(str(control), 60.0) as client:
        client.call("register", bundle=bundle, **fields)
        client.call("bind", pid=pid, **fields)
