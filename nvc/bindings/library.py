"""dlopen, for the process that loads the driver's libraries."""

from __future__ import annotations

import ctypes
import os


def load(name: str) -> None:
    """Load a shared library for good (RTLD_NOW); later loads of the same SONAME find this one.

    Raises OSError with dlerror's text and no errno, which is all that glibc tells.
    """
    ctypes.CDLL(name, mode=os.RTLD_NOW)


def cuda_version(name: str) -> int:
    """The version of a libcuda (12020 is 12.2), which needs neither a GPU nor a device node for it.

    Raises OSError when it cannot be loaded or does not answer.
    """
    try:
        function = ctypes.CDLL(name, mode=os.RTLD_NOW).cuDriverGetVersion
    except AttributeError as error:
        raise OSError(f"{name}: {error}") from error
    version = ctypes.c_int()
    result = function(ctypes.byref(version))
    if result != 0:
        raise OSError(f"{name}: cuDriverGetVersion returns {result}")
    return version.value
