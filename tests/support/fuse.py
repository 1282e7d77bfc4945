"""Whether this machine can serve the simulated manager's nodes: it needs /dev/fuse, and root."""

from __future__ import annotations

import os

import pytest

DEVICE = "/dev/fuse"


def missing() -> str:
    """Why it cannot, or ""."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{DEVICE}: {os.strerror(error.errno or 0)}"
    return ""


def needed() -> None:
    """For modules whose tests, or whose users' tests, are nothing without it: skips them. As an ordinary user they are
    skipped one by one, since they need root.
    """
    why = missing()
    if why and os.geteuid() == 0:
        pytest.skip(f"no simulated manager here: {why}", allow_module_level=True)
