"""``nvc-py share``: what containers may use of GPUs, and what they use (click commands)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, cast

import click

from nvc.base.errors import ContainerError, NvcError, UsageError
from nvc.cli.settings import Settings
from nvc.cli.share import agent as share_agent
from nvc.cli.share import attach, check, events, hint, inside, policy, usage
from nvc.cli.share import rows as share_rows
from nvc.cli.share import store as share_store
from nvc.cli.share import text as share_text
from nvc.guard.protocol import CONTROL
from nvc.share import change, policyfile, store
from nvc.share.model import CAP_WHOLE
from nvc.share.policy import as_gpu_share
from nvc.share.spec import format_gpu, parse_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.model import Gpu
    from nvc.share.limits import Limits
    from nvc.share.outside import Outcome
    from nvc.share.region import RegionSlot
    from nvc.share.view import ShareRow

_NONE = "no container here has a share; one asks with -e NVC_SHARE=mem=10Gi"
#: Key of click's context: the store's directory.
_STORE = "nvc.share.store"
#: Seconds that processes are given to take up a cap: libcuda's own thread comes by every 0.1 s.
_TAKEN_UP = 0.5
_AGENT = click.option("--agent", "socket", metavar="SOCKET", default=CONTROL, help="The agent's control socket.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", "directory", metavar="DIR", help="Where shares are kept.  [default: /run/nvc/share]")
@click.pass_context
def share(context: click.Context, directory: str | None) -> None:
    """Fractions of a GPU: what containers may use, and what they use.

    A container asks for a share when it is started, in words with commas between them:

    \b
        mem=10Gi            memory: Ki Mi Gi Ti, K M G T, or a percentage of the GPU's
        cap=50%             never more than this much of the GPU's time
        weight=30           its part when others want the GPU too; 10 is usual
        priority=high       before others: low, normal, high; service (of an administrator's settings)
        latency=1ms         how long a service waits for the others at most
        oversubscribe=on    mem may be more than the GPU has; the rest lies in the host's

    \b
        podman run -e NVC_SHARE=mem=10Gi,cap=50% ...
        podman run -e "NVC_SHARE=0:mem=10Gi;1:mem=20Gi" ...      each GPU its own
        podman run --annotation nvc.share=mem=10Gi ...

    Here they are listed, changed while they run, and paused. In a container, ls and get show its own share, and set
    lowers it. A share is held by the agent's guard where it runs, else by a library in the container's programs; then
    programs that go round it are not held.
    """
    context.meta[_STORE] = directory or share_store.usual()


share.add_command(attach.attach)
share.add_command(attach.detach)
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
@_AGENT
def list_shares(as_json: bool, verbose: bool, watch: bool, interval: float, socket: str) -> None:
    """List containers with a share, one line per GPU.

    A star marks what the container lowered itself. FROZEN is how long a cap kept it off the GPU, GUARD the version of
    the process that enforces the share from outside.

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
        if not rows:
            click.echo(_NONE, err=True)
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
                    lines += share_text.table(rows, verbose=verbose).split("\n") if rows else [_NONE]
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
    """With warnings, and why an agent that is there gave no status."""
    if inside.is_inside(_store()):
        return list(inside.own_rows()), [], None
    rows, warnings = share_rows.of_store(_store(), pids=pids)
    if not rows:
        return rows, warnings, None
    rows, silent = share_agent.guarded(rows, socket, pids=pids)
    return rows, warnings, silent


@share.command()
@click.argument("container", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_AGENT
def get(container: str | None, as_json: bool, socket: str) -> None:
    """Print a container's share, as the words that `set` takes: one line per GPU.

    CONTAINER is an id or its beginning, or the pid of the container's first process. In a container it is left out.

    \b
        nvc-py share get 4f0c
        4f0c91d2a7b3 GPU-b8058b66-3950-5eb2-94c2-df90166ee487 mem=10Gi,cap=50%
    """
    rows: Sequence[ShareRow]
    silent: NvcError | None = None
    if inside.is_inside(_store()) and container is None:
        rows = inside.own_rows()
    else:
        with store.find(_named(container), _store()) as entry:
            rows, silent = share_agent.guarded(share_rows.of_entry(entry, pids=as_json), socket, entry.name)
    if as_json:
        click.echo(json.dumps([row.as_data() for row in rows], indent=2))
    else:
        for row in rows:
            click.echo(f"{row.container} {row.gpu} {format_gpu(inside.words(row))}")
    if silent is not None:
        raise silent


@share.command("set")
@click.argument("arguments", nargs=-1, required=True, metavar="[CONTAINER] SPEC")
@click.option("--gpu", "selector", metavar="SELECTOR", default="", help="Only this GPU: UUID, #POSITION or index.")
@click.option("--force", is_flag=True, help="Give more than the node's maximum.")
@_AGENT
@click.pass_obj
def set_share(settings: Settings | None, arguments: tuple[str, ...], selector: str, force: bool, socket: str) -> None:
    """Change a running container's share: mem, cap, weight, priority and latency.

    Words that are not said stay as they are. Memory that is in use stays in use; only new allocations are refused.
    The node's maximum holds unless --force. A container under the agent's guard is held to it when this returns.
    In a container CONTAINER is left out, and a share can only be lowered.

    \b
        nvc-py share set 4f0c weight=30
        nvc-py share set 4f0c mem=20Gi,cap=75% --gpu '#0'
    """
    wanted = parse_gpu(arguments[-1])
    if inside.is_inside(_store()) and len(arguments) == 1:
        inside.lower(wanted, selector)
        return
    if len(arguments) != 2:
        raise UsageError("set takes a container and words", hint="nvc-py share set CONTAINER mem=10Gi; see share ls")
    with store.find(arguments[0], _store()) as entry:
        with share_agent.guarding(entry, socket) as agent:
            fields = {"spec": arguments[1], "gpu": selector or None, "force": force or None}
            done = agent.call("set", **fields) if agent is not None else None
        if done is not None:
            for uuid, spec in cast("list[tuple[str, str]]", done["gpus"]):
                click.echo(f"{entry.name[:12]} {uuid} {spec}")
            click.echo("in force: the agent holds it")
            return
        with change.Hold(entry) as held:
            after, places = change.apply(
                held,
                policyfile.load(),
                wanted,
                selector,
                lambda: _inventory(settings),
                force=force,
                check=lambda after: share_agent.check_without(held, after, socket),
            )
            alone = share_agent.without(held, after, socket)
        for position in places:
            click.echo(
                f"{entry.name[:12]} {after.gpus[position].uuid} {format_gpu(as_gpu_share(after.gpus[position]))}"
            )
        if alone:
            later = "; weight and priority, when an agent answers again" if wanted.weight or wanted.priority else ""
            click.echo(f"in force: the container's supervisor holds it{later}")
            return
        if agent is not None:
            return
        from nvc.share import outside

        if wanted.weight or wanted.priority:
            _report(outside.reweigh(entry, after), "weight: in force for {} processes")
        if wanted.cap:
            _say_when(entry, after)


@share.command()
@click.argument("container")
@_AGENT
def pause(container: str, socket: str) -> None:
    """Keep a container off the GPU, also what it is computing now; it keeps its memory.

    Its programs wait; nothing in them fails. Allocations and copies that need the GPU wait as well.
    """
    _pause(container, socket, paused=True)


@share.command()
@click.argument("container")
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Wait for the GPU's memory to be free.",
)
@_AGENT
def resume(container: str, wait: float, socket: str) -> None:
    """Let a paused or suspended container go on.

    The memory of a suspended one must fit on its GPU again; --wait waits until others have freed enough.
    """
    with store.find(container, _store()) as entry:
        if share_agent.is_suspended(entry, socket):
            share_agent.ask_long(socket, "resume", container=entry.name, wait=wait)
            click.echo(f"{entry.name[:12]} is resumed: its memory is on the GPU")
            return
    _pause(container, socket, paused=False)


@share.command()
@click.argument("container")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long work that has begun may take to end.",
)
@_AGENT
def suspend(container: str, timeout: float, socket: str) -> None:
    """Move a container's GPU memory to the host, and free it for others; its programs wait until `resume`.

    All of its processes are suspended, or none. Needs driver 570, the agent, and host memory of the same size; programs
    that share GPU memory with others (MPS, CUDA IPC, NCCL) cannot be suspended.

    \b
        nvc-py share suspend 4f0c
        nvc-py share resume 4f0c --wait=60
    """
    with store.find(container, _store()) as entry:
        done = share_agent.ask_long(socket, "suspend", container=entry.name, timeout=timeout)
    moved = share_text.size(sum(cast("list[int]", done["memory"])))
    click.echo(f"{entry.name[:12]} is suspended: {moved} of {done['processes']} processes moved in {done['seconds']} s")


def _pause(container: str, socket: str, *, paused: bool) -> None:
    with store.find(container, _store()) as entry:
        if paused and change.limits(entry).paused:
            click.echo(f"{entry.name[:12]} is paused already")
            return
        with share_agent.guarding(entry, socket) as agent:
            done = agent.call("pause" if paused else "resume") if agent is not None else None
        alone = False
        if done is None:
            with change.Hold(entry) as held:
                after = change.pause(held, paused=paused)
                alone = share_agent.without(held, after, socket)
        if agent is not None or alone:
            holder = ": the agent holds it" if done is not None else ": its supervisor holds it" if alone else ""
            click.echo(f"{entry.name[:12]} is {'paused' if paused else 'resumed'}{holder}")
            return
        from nvc.share import outside

        outcome = outside.freeze(entry, after, frozen=paused)
    did = "stopped" if paused else "started"
    _report(outcome, f"{did} {{}} processes from outside; the others do it themselves")


def _report(outcome: Outcome, text: str) -> None:
    for problem in outcome.problems:
        click.echo(f"warning: {problem}", err=True)
    click.echo(text.format(len(outcome.done)))
    if outcome.problems:
        raise ContainerError(
            f"{len(outcome.problems)} processes were not reached", hint="they follow with their next call of the driver"
        )


def _without_cap(entry: store.Entry, gpus: int) -> list[RegionSlot]:
    found = share_rows.region_of(entry, gpus)
    return [slot for slot in found.slots if slot.channels and not slot.threads_cap] if found is not None else []


def _say_when(entry: store.Entry, changed: Limits) -> None:
    if all(gpu.cap >= CAP_WHOLE for gpu in changed.gpus):
        return
    until = time.monotonic() + _TAKEN_UP
    while (slow := _without_cap(entry, len(changed.gpus))) and time.monotonic() < until:
        time.sleep(0.02)
    if slow:
        names = ", ".join(f"{slot.name} ({slot.pid})" for slot in slow[:4])
        click.echo(f"cap: {len(slow)} processes take it up with their next call of the driver: {names}")


def _store() -> str:
    directory: str = click.get_current_context().meta[_STORE]
    return directory


def _named(container: str | None) -> str:
    if container is None:
        raise UsageError("a container is missing", hint="nvc-py share ls names them")
    return container


# How much memory GPUs have.


def _inventory(settings: Settings | None) -> Sequence[Gpu]:
    from nvc.base.log import open_log
    from nvc.inject import api

    general = settings or Settings()
    with general.open(api, open_log(general.debug)) as context:
        return context.inventory().gpus
