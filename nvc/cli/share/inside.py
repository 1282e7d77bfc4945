"""``nvc-py share`` in a container: its own share, by the two files that it has."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from nvc.base.errors import ContainerError, InputError, reason
from nvc.share import change, region, view
from nvc.share import limits as limits_file
from nvc.share.model import CAP_WHOLE, DEFAULT_WEIGHT, GpuShare
from nvc.share.policy import as_gpu_share
from nvc.share.spec import format_gpu, format_memory

if TYPE_CHECKING:
    from nvc.share.limits import Limits
    from nvc.share.model import ResolvedGpu
    from nvc.share.view import ShareRow

#: What stands for the container in its own ``share ls``.
HERE = "this container"


def words(row: ShareRow) -> GpuShare:
    """What `share set` takes to say the same."""
    return GpuShare(
        row.most or row.limit,
        0,
        row.cap if row.cap < CAP_WHOLE else 0,
        row.weight or DEFAULT_WEIGHT,
        row.priority,
        True if row.oversubscribe else None,
        row.latency,
        row.request,
        idle=row.idle,
    )


def is_inside(store: str) -> bool:
    """Whether this is a container with a share. store: the directory of the host's."""
    return os.path.exists(limits_file.PATH) and not os.path.isdir(store)


def _own() -> tuple[Limits, region.Region | None]:
    try:
        descriptor = os.open(limits_file.PATH, os.O_RDONLY | os.O_CLOEXEC)
        try:
            now = limits_file.read(descriptor)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        raise ContainerError(f"{limits_file.PATH}: {why}", hint="start the container anew") from None
    try:
        descriptor = os.open(region.PATH, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return now, region.read(descriptor, len(now.gpus))
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return now, None


def own_rows() -> tuple[ShareRow, ...]:
    """Raises ContainerError."""
    now, found = _own()
    return view.rows(now.container or HERE, "", now, found, {})


def lower(wanted: GpuShare, selector: str, *, as_json: bool = False) -> None:
    """Put lower limits into the region: from inside nothing can be raised above what the host gives."""
    if wanted.priority or wanted.latency or wanted.idle or wanted.oversubscribe is not None:
        raise InputError("in a container only mem, cap and weight can be lowered")
    if wanted.memory_part or wanted.request or wanted.request_part:
        raise InputError("in a container mem takes bytes", hint="mem=10Gi; share get says what it has")
    now, _ = _own()
    places = change.places(now.gpus, selector, None)
    for position in places:
        _check_lower(now.gpus[position], wanted)
    try:
        descriptor = os.open(region.PATH, os.O_RDWR | os.O_CLOEXEC)
        try:
            for position in places:
                region.set_own(descriptor, position, wanted.memory or None, wanted.cap or None, wanted.weight or None)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ContainerError(f"{region.PATH}: {reason(error)}") from None
    rows = own_rows()
    if as_json:
        shown = [{"gpu": row.gpu, "share": format_gpu(words(row))} for row in rows]
        click.echo(json.dumps({"container": rows[0].container if rows else HERE, "gpus": shown}, indent=2))
        return
    for row in rows:
        click.echo(f"{row.container} {row.gpu} {format_gpu(words(row))}")


def _check_lower(has: ResolvedGpu, wanted: GpuShare) -> None:
    above = ""
    if has.memory and wanted.memory > has.memory:
        above = f"mem={format_memory(wanted.memory)}"
    elif wanted.cap > has.cap:
        above = "cap"
    elif wanted.weight > (has.weight or DEFAULT_WEIGHT):
        above = f"weight={wanted.weight}"
    if above:
        raise InputError(
            f"{above} is more than {has.uuid} gives this container", hint=f"it has {format_gpu(as_gpu_share(has))}"
        )
