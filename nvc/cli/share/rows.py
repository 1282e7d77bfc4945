"""The rows of ``share ls`` and ``top``: what the host's store says of every living container with a share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError
from nvc.share import processes, region, store, view

if TYPE_CHECKING:
    from nvc.share.view import ShareRow


def of_store(directory: str, *, pids: bool) -> tuple[list[ShareRow], list[str]]:
    """(rows, warnings) of all containers. pids: look their processes' pids on this host up.

    Raises PrivilegeError.
    """
    warnings: list[str] = []
    rows: list[ShareRow] = []
    for entry in store.each(directory, warnings):
        with entry:
            if not entry.is_alive():
                continue
            try:
                rows += of_entry(entry, pids=pids)
            except NvcError as error:
                warnings.append(str(error))
    return rows, warnings


def of_entry(entry: store.Entry, *, pids: bool) -> tuple[ShareRow, ...]:
    """One container's rows. Raises ContainerError."""
    now = entry.checked_limits()
    found = region_of(entry, len(now.gpus))
    numbers: dict[int, int] = {}
    if pids and found is not None:
        descriptor = entry.open_region()
        try:
            numbers = processes.host_pids(descriptor, found.slots)
        finally:
            os.close(descriptor)
    name = store.shown_name(entry.record.name)
    return tuple(row.replace(name=name) for row in view.rows(entry.name, entry.record.key, now, found, numbers))


def region_of(entry: store.Entry, gpus: int) -> region.Region | None:
    """None where it cannot be read."""
    try:
        descriptor = entry.open_region()
    except (OSError, ValueError):
        return None
    try:
        return region.read(descriptor, gpus)
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)
