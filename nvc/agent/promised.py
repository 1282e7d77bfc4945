"""What all tenants of the node were promised at most, in the agent's memory.

Neither a start nor ``share set`` need read the store for it.

The kernel tells what changed since, before the writer's call returns. A process that asks holds the store's lock, and
so does one that makes an entry, removes one or lets a request grow: what they did is here then. Entries count until
they are removed, also those of containers that have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading

from nvc.agent.waiting import threads
from nvc.base.errors import AgentError, NvcError
from nvc.linux import const
from nvc.linux.inotify import Inotify
from nvc.share import fits, store
from nvc.share.admission import Promises
from nvc.share.entry import check_room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.share.fits import Question


class PromisedRequests:
    """For any thread."""

    def __init__(self, shares: str) -> None:
        """shares: the store's directory."""
        self._shares = shares
        self._inotify: Inotify | None = None
        #: The store's lock is not enough: it is free when a start that asked is killed, while its answer is computed.
        #: A thread that holds this one waits for no other lock.
        self._lock = threading.Lock()
        #: Not one of the agent's others: all of those may wait for the store's lock, which the start that asks holds.
        self._thread = threads(1, "nvc-promised")

    def close(self) -> None:
        self._thread.shutdown()
        with self._lock:
            self._let_go()

    @contextlib.contextmanager
    def known(self) -> Iterator[Promises | None]:
        """For as long as the context lasts; None where the kernel does not watch all of it."""
        with self._lock:
            yield self._look()

    async def check(self, question: Question) -> None:
        """For a start that holds the store's lock. Raises ContainerError where it does not fit, AgentError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._check, question)

    def _check(self, question: Question) -> None:
        with self.known() as promises:
            if promises is None or self._identity != (question.device, question.inode):
                raise AgentError(f"what others were promised in {self._shares} is not known")
            fits.check(question, promises)

    def _let_go(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _look(self) -> Promises | None:
        try:
            if self._inotify is None or not self._follow(self._inotify):
                self._let_go()
                self._inotify = Inotify()
                self._read(self._inotify)
        except (NvcError, OSError):
            self._let_go()
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
            except (OSError, ValueError) as error:
                check_room(path, error)
                self._unread.add(key)
            return watch
