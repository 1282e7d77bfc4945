"""nvc.linux.namespaces: the rights to enter one."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from nvc.linux import namespaces
from nvc.linux.syscalls import SyscallError
from tests.support import leftovers
from tests.support.isolation import in_namespaces

pytestmark = pytest.mark.root


def entered_without_threads() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pytest.raises(SyscallError) as caught:
            namespaces.enter("/proc/self/ns/mnt", "mnt")
        assert caught.value.errno == errno.EINVAL
    finally:
        stop.set()
        thread.join()
    # The kernel's thread ends a little after Python's.
    assert leftovers.until(lambda: len(os.listdir("/proc/self/task")) == 1, seconds=30)
    namespaces.enter("/proc/self/ns/mnt", "mnt")


def test_entering_with_threads_is_refused_with_einval() -> None:
    in_namespaces(entered_without_threads)
