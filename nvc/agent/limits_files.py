"""Limits files of tenants: which of them may say something else than what is in force."""

from __future__ import annotations

import contextlib

from nvc.linux import const
from nvc.linux.inotify import Inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.agent.tenant import Tenant


class LimitsFiles:
    """The kernel tells which were changed. Looked at again and again are those that it does not watch: of groups, whose
    file is that of the first container that lives; those that are missing; and all beyond the limits of watches.
    """

    def __init__(self, shares: str) -> None:
        """shares: the store's directory."""
        self._shares = shares
        self._inotify: Inotify | None = None
        with contextlib.suppress(OSError):
            self._inotify = Inotify()
        self._looked_at: dict[int, Tenant] = {}
        #: Number -> watch, and a watch's numbers: a container and an earlier one of its name have the same file.
        self._watches: dict[int, int] = {}
        self._watched: dict[int, dict[int, Tenant]] = {}
        self._due: set[int] = set()

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()

    def add(self, tenant: Tenant) -> None:
        """It is due, and the next change of its file too."""
        self._due.add(tenant.number)
        if not self._watch(tenant):
            self._looked_at[tenant.number] = tenant

    def drop(self, tenant: Tenant) -> None:
        self._due.discard(tenant.number)
        self._looked_at.pop(tenant.number, None)
        watch = self._watches.pop(tenant.number, None)
        if watch is None:
            return
        del self._watched[watch][tenant.number]
        if not self._watched[watch]:
            self._let_go(watch)

    def again(self, tenant: Tenant) -> None:
        """Its file was not taken up."""
        self._due.add(tenant.number)

    def take(self) -> set[int]:
        """Numbers of those that are due; none is any more."""
        happened = self._inotify.read() if self._inotify is not None else {}
        if const.NO_WATCH in happened:  # of any of them, and that another one has its name
            happened = dict.fromkeys(self._watched, const.IN_MOVE_SELF)
        for watch, events in happened.items():
            for tenant in tuple(self._watched.get(watch, {}).values()):
                self._due.add(tenant.number)
                if events & ~const.IN_MODIFY:  # it is gone, or another one has its name
                    self._looked_at[tenant.number] = tenant
                    del self._watches[tenant.number]
            if events & ~const.IN_MODIFY and watch in self._watched:
                self._let_go(watch)
        for tenant in tuple(self._looked_at.values()):
            if tenant.is_file_changed(self._shares):
                self._due.add(tenant.number)
                if self._watch(tenant):
                    del self._looked_at[tenant.number]
        found, self._due = self._due, set()
        return found

    def _watch(self, tenant: Tenant) -> bool:
        if self._inotify is None or tenant.record.group:
            return False
        try:
            watch = self._inotify.add(tenant.limits_path(self._shares))
        except OSError:
            return False
        self._watches[tenant.number] = watch
        self._watched.setdefault(watch, {})[tenant.number] = tenant
        return True

    def _let_go(self, watch: int) -> None:
        del self._watched[watch]
        if self._inotify is not None:
            with contextlib.suppress(OSError):
                self._inotify.remove(watch)
