"""dlopen, for the process that loads the driver's libraries."""

from __future__ import annotations

import ctypes
import os


def load(name: str) -> None:
    """Load a shared library for good (RTLD_NOW); later loads of the same SONAME find this one.

    Raises OSError with dlerror's text and no errno, which is all that glibc tells.
    """
    ctypes.CDLL(name, mode=os.RTLD_NOW)
