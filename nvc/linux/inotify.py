"""Files that tell when they change: inotify(7)."""

from __future__ import annotations

import os
import struct

from nvc.linux import const, syscalls

#: struct inotify_event without its name, which the events of a watched directory's files have.
_EVENT = struct.Struct("=iIII")
#: Bytes of one reading.
_ROOM = 16 << 10


class Inotify:
    """Watches of files, by numbers that are not used again soon."""

    def __init__(self) -> None:
        """Raises OSError: EMFILE at the user's limit of instances."""
        self._file = syscalls.inotify_init1(os.O_NONBLOCK)

    def close(self) -> None:
        self._file.close()

    def add(self, path: str) -> int:
        """Watch the file at ``path``; a watch that there is of it, or a new one. Raises OSError: ENOSPC."""
        mask = const.IN_MODIFY | const.IN_ATTRIB | const.IN_DELETE_SELF | const.IN_MOVE_SELF
        return syscalls.inotify_add_watch(self._file, path, mask)

    def add_directory(self, path: str) -> int:
        """Watch which names come to and leave a directory by rename(2). Raises OSError: ENOSPC."""
        mask = const.IN_MOVED_FROM | const.IN_MOVED_TO | const.IN_DELETE_SELF | const.IN_MOVE_SELF
        return syscalls.inotify_add_watch(self._file, path, mask)

    def remove(self, watch: int) -> None:
        """Raises OSError: EINVAL where the file is gone."""
        syscalls.inotify_rm_watch(self._file, watch)

    def read(self, names: set[str] | None = None) -> dict[int, int]:
        """What has happened since the last time: watch -> IN_* together; const.NO_WATCH: events were lost.

        names: gets those that came to, or left, a watched directory.
        """
        found: dict[int, int] = {}
        while True:
            try:
                data = os.read(self._file.fileno(), _ROOM)
            except BlockingIOError:
                return found
            at = 0
            while at < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                if names is not None and name:
                    names.add(os.fsdecode(name))
                found[watch] = found.get(watch, 0) | mask
