"""``nvc-py share``: what containers may use of GPUs, and what they use (click commands)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from nvc.base.errors import NvcError, UsageError
from nvc.cli.share import agent as share_agent
from nvc.cli.share import attach, change, check, events, hint, inside, policy, usage
from nvc.cli.share import rows as share_rows
from nvc.cli.share import store as share_store
from nvc.cli.share import text as share_text
from nvc.share import store
from nvc.share.spec import format_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.share.view import ShareRow


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", "directory", metavar="DIR", help="Where shares are kept.  [default: /run/nvc/share]")
@click.pass_context
def share(context: click.Context, directory: str | None) -> None:
    """Fractions of a GPU: what containers may use, and what they use.

    A container asks for a share at its start: settings with commas between them:

    \b
        mem=10Gi            memory: Ki Mi Gi Ti, K M G T, or a percentage of the GPU's
        mem=8Gi..40Gi       request (guaranteed) and limit
        cap=50%             never more than this much of the GPU's time
        weight=30           relative part of the time while others compute; without it 10
        priority=high       low, normal, high; service where an administrator allows it
        latency=1ms         longest time that a service waits for the others
        idle=60s            after so long without computing it may be suspended
        oversubscribe=on    mem may exceed the GPU's memory; the rest is in the host's

    \b
        podman run -e NVC_SHARE=mem=10Gi,cap=50% ...
        podman run -e "NVC_SHARE=0:mem=10Gi;1:mem=20Gi" ...      each GPU its own
        podman run --annotation nvc.share=mem=10Gi ...

    These commands list, change and pause shares of running containers. CONTAINER is an id or its beginning, the
    engine's name for it (NAMESPACE/POD/CONTAINER, or how that ends), or the pid of its first process.

    Where the preloaded library enforces a container's share, ls and get show it, and set lowers it. The guard
    enforces a share where nvc-runtime starts the container and the agent runs; elsewhere the library does, which
    hostile programs can bypass.
    """
    context.meta[share_store.DIRECTORY] = directory or share_store.usual()


share.add_command(attach.attach)
share.add_command(attach.detach)
share.add_command(change.set_share)
share.add_command(change.pause)
share.add_command(change.resume)
share.add_command(change.suspend)
share.add_command(check.check)
share.add_command(events.events)
share.add_command(hint.hint)
share.add_command(policy.policy)
share.add_command(usage.usage)


@share.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Whole names, and the processes with their pids on this host.")
@click.option("--watch", is_flag=True, help="Refresh until q is pressed.")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@share_agent.OPTION
def list_shares(as_json: bool, verbose: bool, watch: bool, interval: float, socket: str) -> None:
    """List containers with a share, one line per GPU.

    Where an agent exists and does not answer, or none listens at --agent, the exit code is 1.

    A star marks what the container lowered itself. FROZEN is how long a cap kept it off the GPU, GUARD the version of
    the process that enforces the share from outside.

    In JSON memory is in bytes, cap in 1/1000 of the GPU's time (500: 50%; 1000: no cap), latency and bound in
    microseconds, and target and achieved are parts from 0 to 1.

    With --watch a terminal shows it in place; keys: q ends, j and k move. Anything else gets table below table, and
    with --json one object a line. `nvc-py top` shows more.

    \b
        nvc-py share ls
        nvc-py share ls -v --watch
        nvc-py share ls --watch --json --interval=10 >> shares.jsonl
    """
    if watch:
        _watch(as_json=as_json, verbose=verbose, interval=interval, socket=socket)
        return
    rows, warnings, silent = _rows(socket, pids=verbose or as_json)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(_as_data(rows, warnings), indent=2))
    else:
        click.echo(share_text.table(rows, verbose=verbose))
        if not rows and silent is None:
            click.echo(share_store.nothing(), err=True)
    if silent is not None:
        raise silent


def _watch(*, as_json: bool, verbose: bool, interval: float, socket: str) -> None:
    from rich.text import Text

    from nvc.cli.top import screen as top_screen

    rows, warnings, silent = _rows(socket, pids=verbose or as_json)  # the first time, what is wrong ends it
    with top_screen.Screen(whole=not as_json) as screen:
        try:
            while True:
                warnings += [str(silent)] if silent is not None else []
                if as_json:
                    click.echo(json.dumps({"when": round(time.time(), 3), **_as_data(rows, warnings)}))
                else:
                    head = f"nvc-py share ls   {time.strftime('%H:%M:%S')}   every {interval:g} s, q ends"
                    lines = [head, *(f"warning: {warning}" for warning in warnings), ""]
                    lines += share_text.table(rows, verbose=verbose).split("\n") if rows else [share_store.nothing()]
                    screen.show([*map(Text, lines), *([] if screen.is_whole else [Text()])])
                if screen.wait(interval) in top_screen.END:
                    return
                try:
                    rows, warnings, silent = _rows(socket, pids=verbose or as_json)
                except NvcError as error:
                    rows, warnings, silent = [], [f"{error}; trying again"], None
        except KeyboardInterrupt:
            return


def _as_data(rows: Sequence[ShareRow], warnings: list[str]) -> dict[str, object]:
    return {"shares": [row.as_data() for row in rows], "warnings": warnings}


def _rows(socket: str, *, pids: bool) -> tuple[list[ShareRow], list[str], NvcError | None]:
    """With warnings, and why an agent that is there, or that --agent names, gave no status."""
    if inside.is_inside(share_store.chosen()):
        return list(inside.own_rows()), [], None
    rows, warnings = share_rows.of_store(share_store.chosen(), pids=pids)
    if not rows and not share_agent.has_named():
        return rows, warnings, None
    rows, silent = share_agent.guarded(rows, socket, pids=pids)
    return rows, warnings, silent


@share.command()
@click.argument("container", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@share_agent.OPTION
def get(container: str | None, as_json: bool, socket: str) -> None:
    """Print a container's share as the share spec that `set` takes, one line per GPU.

    CONTAINER is an id or its beginning, the engine's name for it (NAMESPACE/POD/CONTAINER, or how that ends), or the
    pid of its first process. In a container it is left out.

    \b
        nvc-py share get 4f0c
        4f0c91d2a7b3 GPU-b8058b66-3950-5eb2-94c2-df90166ee487 mem=10Gi,cap=50%
    """
    rows: Sequence[ShareRow]
    silent: NvcError | None = None
    if inside.is_inside(share_store.chosen()) and container is None:
        rows = inside.own_rows()
    else:
        with store.find(_named(container), share_store.chosen()) as entry:
            rows, silent = share_agent.guarded(share_rows.of_entry(entry, pids=as_json), socket, entry.name)
    if as_json:
        click.echo(json.dumps([row.as_data() for row in rows], indent=2))
    else:
        for row in rows:
            click.echo(f"{row.container} {row.gpu} {format_gpu(inside.words(row))}")
    if silent is not None:
        raise silent


def _named(container: str | None) -> str:
    if container is None:
        raise UsageError("a container is missing", hint="nvc-py share ls names them")
    return container
