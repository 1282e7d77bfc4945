"""dlopen, for the process that loads the driver's libraries."""

from __future__ import annotations

import sys

from nvc.linux import syscalls

#: The part of a returned word that an enum (nvmlReturn_t, CUresult) has.
INT = 0xFFFFFFFF


def load(name: str) -> None:
    """Load a shared library for good (RTLD_NOW); later loads of the same SONAME find this one.

    Raises OSError with dlerror's text and no errno, which is all that glibc tells.
    """
    syscalls.load(name)


def cuda_version(name: str) -> int:
    """The version of a libcuda (12020 is 12.2), which needs neither a GPU nor a device node for it.

    Raises OSError when it cannot be loaded or does not answer.
    """
    function = syscalls.symbol(syscalls.load(name), "cuDriverGetVersion")
    if not function:
        raise OSError(f"{name}: undefined symbol: cuDriverGetVersion")
    version = bytearray(4)
    result = syscalls.invoke(function, version) & INT
    if result != 0:
        raise OSError(f"{name}: cuDriverGetVersion returns {result}")
    return int.from_bytes(version, sys.byteorder)
