"""Which of two processes of the driver publishes: the one that began last, as long as it lives.

While the driver is upgraded both run, and may see the machine with other eyes; if both published, each would correct
the other for ever.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading

from nvc.base.errors import NvcError, reason

_NAME = ".publisher"


class Turn:
    """A file that the newest process put in place, locked by it. The kernel gives the lock up with the process."""

    def __init__(self, directory: str) -> None:
        """Take the turn. directory: of files of this driver. Raises NvcError."""
        self._directory = directory
        self._path = f"{directory}/{_NAME}"
        self._lock = threading.Lock()
        try:
            self._descriptor = self._take()
        except OSError as error:
            raise NvcError(f"{self._path}: {reason(error)}") from error

    def is_ours(self) -> bool:
        """Whether it is this process's turn; it is again when the one that began later has ended. From any thread."""
        with self._lock:
            return self._descriptor >= 0 and self._is_ours()

    def close(self) -> None:
        """Give it up."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_ours(self) -> bool:
        try:
            there = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True  # removed by hand: better two that publish than none
        except OSError:
            return False
        try:
            own, found = os.fstat(self._descriptor), os.fstat(there)
            if (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino):
                return True
            fcntl.flock(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = self._take()
            os.close(self._descriptor)
            self._descriptor = taken
        except OSError:
            return False
        finally:
            os.close(there)
        return True

    def _take(self) -> int:
        descriptor, name = tempfile.mkstemp(prefix=f"{_NAME}-", dir=self._directory)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.replace(name, self._path)
        return descriptor
