"""Ownership of one file descriptor as a type, so that none leaks and none is closed twice."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class Fd:
    """Owns the descriptor ``number``; closes it when closed, left as a context, or forgotten.

    name: what it was opened as, for messages only; never used to open anything again.
    """

    __slots__ = ("_number", "name")

    def __init__(self, number: int, name: str = "") -> None:
        if number < 0:
            raise ValueError(f"not a file descriptor: {number}")
        self._number = number
        self.name = name

    def fileno(self) -> int:
        """The number. Raises ValueError once closed or detached."""
        if self._number < 0:
            raise ValueError(f"descriptor of {self.name or 'a file'} is closed")
        return self._number

    @property
    def closed(self) -> bool:
        """Whether this object no longer owns a descriptor."""
        return self._number < 0

    def close(self) -> None:
        """Close it; a second call does nothing."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def detach(self) -> int:
        """Give the number away: the caller closes it. Raises ValueError once closed."""
        number = self.fileno()
        self._number = -1
        return number

    def duplicate(self) -> Fd:
        """Another owner (CLOEXEC) of the same open file. Raises OSError (EMFILE)."""
        return Fd(os.dup(self.fileno()), self.name)

    def stat(self) -> os.stat_result:
        """fstat(2), which works on O_PATH descriptors too. Raises OSError."""
        return os.fstat(self.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # __init__ may have raised before the slot was set, and os may be gone at interpreter exit.
        if getattr(self, "_number", -1) >= 0 and os is not None:
            try:
                self.close()
            except OSError:
                pass

    def __str__(self) -> str:
        return f"{self._number} ({self.name})" if self.name else str(self._number)

    def __repr__(self) -> str:
        return f"Fd({self})"


def same_file(one: Fd, other: Fd) -> bool:
    """Whether both name the same inode (device and number); mounts and open modes may differ. Raises OSError."""
    first, second = one.stat(), other.stat()
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
