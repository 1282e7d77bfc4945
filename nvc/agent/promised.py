"""What all tenants of the node were promised at most, in the agent's memory: ``share set`` need not read the store.

The kernel tells what changed since, before the writer's call returns. Who asks holds the store's lock, and so does who
makes an entry, removes one or lets a request grow: what they did is here then. Entries count until they are removed,
also those of containers that have ended.
"""

from __future__ import annotations

import contextlib
import errno
import os

from nvc.linux import const
from nvc.linux.inotify import Inotify
from nvc.share import store
from nvc.share.admission import Promises


class PromisedRequests:
    """For one thread at a time: that which holds the store's lock."""

    def __init__(self, shares: str) -> None:
        """shares: the store's directory."""
        self._shares = shares
        self._inotify: Inotify | None = None

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def look(self) -> Promises | None:
        """None where the kernel does not watch all of it."""
        try:
            if self._inotify is None or not self._follow(self._inotify):
                self.close()
                self._inotify = Inotify()
                self._read(self._inotify)
        except OSError:
            self.close()
            return None
        return self._promises

    def _follow(self, inotify: Inotify) -> bool:
        """What has changed; False: that is not known. Raises OSError."""
        names: set[str] = set()
        happened = inotify.read(names)
        if const.NO_WATCH in happened or self._identity != self._look_at_directory():
            return False
        changed = {self._keys[watch] for watch in happened if watch in self._keys}
        for key in changed | names | self._unread:
            self._take(inotify, key)
        return True

    def _read(self, inotify: Inotify) -> None:
        """All entries. Raises OSError."""
        self._promises = Promises()
        self._watches: dict[str, int] = {}
        self._keys: dict[int, str] = {}
        #: Entries that could not be read, and may be another time.
        self._unread: set[str] = set()
        self._identity = self._look_at_directory()
        inotify.add_directory(self._shares)
        for key in os.listdir(self._shares):
            self._take(inotify, key)

    def _look_at_directory(self) -> tuple[int, int]:
        """Another one, or a mount over it, is another store."""
        found = os.stat(self._shares)
        return found.st_dev, found.st_ino

    def _take(self, inotify: Inotify, key: str) -> None:
        """An entry, as it is now. Raises OSError where it cannot be watched."""
        self._promises.drop(key)
        self._unread.discard(key)
        watch = self._watches.pop(key, None)
        if watch is not None:
            del self._keys[watch]
        now = self._put(inotify, key) if not key.startswith(".") else None
        if now is not None:
            self._watches[key], self._keys[now] = now, key
        if watch is not None and watch != now:
            with contextlib.suppress(OSError):  # the file is gone
                inotify.remove(watch)

    def _put(self, inotify: Inotify, key: str) -> int | None:
        """Count an entry; the watch of its limits file. Raises OSError where it cannot be watched."""
        path = f"{self._shares}/{key}"
        entry = store.entry(key, self._shares)
        if entry is None:
            if os.path.lexists(path):
                self._unread.add(key)
            return None
        with entry:
            try:
                watch = inotify.add(f"{path}/{store.LIMITS}")  # before it is read
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                self._unread.add(key)
                return None
            try:
                self._promises.put(entry.record, entry.limits())
            except (OSError, ValueError):
                self._unread.add(key)
            return watch
