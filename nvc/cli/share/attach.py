"""``nvc-py share attach`` and ``detach``: processes that run already, and were started without us (click commands)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from nvc.base.errors import ContainerError, InputError, UsageError
from nvc.cli.share import store as share_store
from nvc.share.model import DEFAULT_WEIGHT, PROBES, PROBES_LIMIT, WEIGHT_LIMIT, ResolvedGpu
from nvc.share.spec import parse_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

_PID = click.option("--pid", type=click.IntRange(1, 1 << 22), metavar="P", help="One process, as this host counts.")
_CONTAINER = click.option("--container", metavar="CONTAINER", help="Every process of this container, by id or name.")
_DEVICES = click.option("--devices", default="/dev", hidden=True)
_DIRECTORY = click.option("--directory", default="", hidden=True)
_AGENT = click.option("--agent", default="", hidden=True)


@click.command()
@_PID
@_CONTAINER
@click.option("--weight", type=click.IntRange(1, WEIGHT_LIMIT), help="Relative weight (default 10).")
@click.option("--cap", metavar="PERCENT", default="", help="Never more than this: 1% to 100%. Needs the agent.")
@click.option(
    "--probes", type=click.IntRange(0, PROBES_LIMIT), default=PROBES, show_default=True, help="Clients to try at most."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_DEVICES
@_DIRECTORY
@_AGENT
def attach(
    pid: int | None,
    container: str | None,
    weight: int | None,
    cap: str,
    probes: int,
    as_json: bool,
    devices: str,
    directory: str,
    agent: str,
) -> None:
    """Schedule processes that run already and were not started with a share.

    Their channel groups are found and given a timeslice by weight; with the agent also a cap. Their memory is not
    limited. Where no library of ours is in the process, its handles have to be tried: each one that is none prints a
    line in the kernel's log, so no more than --probes are. New groups that the process makes later are not touched:
    attach again.

    \b
        nvc-py share attach --pid 4711 --weight 30
        nvc-py share attach --container 4f0c91d2a7b3 --cap 50%
        nvc-py share detach --pid 4711
    """
    if weight is None and not cap:
        raise UsageError("attach takes --weight, --cap or both", hint="nvc-py share attach --pid 4711 --weight 30")
    if cap:
        parse_gpu(f"cap={cap}")
    reply = _by_agent("attach", agent, pid, container, weight=weight, cap=cap or None, probes=probes)
    if reply is not None:
        _print_processes(reply.get("processes", ()), as_json=as_json)
        return
    if cap:
        raise ContainerError(
            "a cap cannot be kept without the agent, which freezes and thaws the channels all the time",
            hint="systemctl start nvc-agent, or nvc-py agent; --weight alone needs none",
        )
    from nvc.guard import attach as attaching
    from nvc.guard import attached
    from nvc.share.outside import OWN_SLICE, timeslice

    done = []
    wish = ResolvedGpu("", -1, weight=weight or DEFAULT_WEIGHT)
    pids = _pids(pid, container)
    found, problems = [], []
    for each in pids:
        begin = time.monotonic()
        try:
            found.append((attaching.find(each, devices, probes=probes), begin))
        except ContainerError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    groups = sum(len(process.groups) for process, _ in found)
    for process, begin in found:
        microseconds = timeslice(wish, groups) or OWN_SLICE
        attaching.reweigh(attached.save(process, directory or attached.DIRECTORY), microseconds)
        done.append(
            {
                "pid": process.pid,
                "groups": len(process.groups),
                "slice_us": microseconds,
                "source": process.source,
                "probes": process.probes,
                "milliseconds": round((time.monotonic() - begin) * 1000, 1),
            }
        )
    _print_processes(done, as_json=as_json)


@click.command()
@_PID
@_CONTAINER
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_DIRECTORY
@_AGENT
def detach(pid: int | None, container: str | None, as_json: bool, directory: str, agent: str) -> None:
    """Leave attached processes as they were: their own timeslices, and nothing stopped."""
    reply = _by_agent("detach", agent, pid, container)
    if reply is not None:
        _print_pids(reply.get("pids", ()), as_json=as_json)
        return
    from nvc.guard import attach as attaching
    from nvc.guard import attached

    place = directory or attached.DIRECTORY
    done = [each for each in _pids(pid, container) if attaching.restore(each, place)]
    if not done:
        raise InputError("nothing there is attached", hint="nvc-py share attach does it")
    _print_pids(done, as_json=as_json)


def _pids(pid: int | None, container: str | None) -> tuple[int, ...]:
    from nvc.guard import attach as attaching

    if (pid is None) == (container is None):
        raise UsageError("say --pid or --container, one of them", hint="--pid 4711, or --container 4f0c")
    return (pid,) if pid is not None else attaching.of_container(container or "", share_store.chosen())


def _by_agent(verb: str, path: str, pid: int | None, container: str | None, **fields: object) -> dict[str, Any] | None:
    """The agent's reply; None when there is no agent."""
    from nvc.share.protocol import CONTROL, Client, NoAgent

    if (pid is None) == (container is None):
        raise UsageError("say --pid or --container, one of them", hint="--pid 4711, or --container 4f0c")
    try:
        with Client(path or CONTROL) as client:
            return client.call(verb, pid=pid, container=container, **fields)
    except NoAgent:
        return None


def _print_pids(pids: Sequence[int], *, as_json: bool) -> None:
    click.echo(json.dumps({"detached": list(pids)}) if as_json else f"detached: {', '.join(map(str, pids))}")


def _print_processes(done: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(list(done), indent=2))
        return
    for one in done:
        how = f"{one['probes']} clients tried in vain" if one["source"] == "probes" else "handles known"
        click.echo(
            f"process {one['pid']}: {one['groups']} compute groups, {one['slice_us']} us each, {how}, "
            f"in {one['milliseconds']} ms"
        )
