"""``nvc-py share set``, ``pause``, ``resume`` and ``suspend``: changes of running containers (click commands)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, cast

import click

from nvc.base.errors import ContainerError, UsageError
from nvc.base.progress import waiting
from nvc.cli.groups import CHANGES
from nvc.cli.settings import Settings
from nvc.cli.share import agent as share_agent
from nvc.cli.share import inside
from nvc.cli.share import rows as share_rows
from nvc.cli.share import store as share_store
from nvc.cli.share import text as share_text
from nvc.share import change, policyfile, store
from nvc.share.model import CAP_WHOLE
from nvc.share.policy import as_gpu_share
from nvc.share.spec import format_gpu, parse_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.model import Gpu
    from nvc.share.limits import Limits
    from nvc.share.model import GpuShare
    from nvc.share.outside import Outcome
    from nvc.share.region import RegionSlot

#: Seconds that processes are given to take up a cap: libcuda's own thread comes by every 0.1 s.
_TAKEN_UP = 0.5
#: What puts a change into force, in JSON.
_AGENT_HOLDS, _SUPERVISOR_HOLDS, _LIBRARY_HOLDS = "agent", "supervisor", "library"
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("set")
@click.argument("arguments", nargs=-1, required=True, metavar="[CONTAINER] SPEC")
@click.option("--gpu", "selector", metavar="SELECTOR", default="", help="Only this GPU: UUID, #POSITION or index.")
@click.option("--force", is_flag=True, help="Give more than the node's maximum.")
@click.option("--check", is_flag=True, help="Change nothing; exit code 2: it would change something.")
@_JSON
@share_agent.OPTION
@click.pass_obj
def set_share(
    settings: Settings | None,
    arguments: tuple[str, ...],
    selector: str,
    force: bool,
    check: bool,
    as_json: bool,
    socket: str,
) -> int:
    """Change a running container's share: mem, cap, weight, priority, latency and idle.

    Settings that SPEC leaves out stay as they are. Memory that is in use stays in use; new allocations are refused.
    The node's maximum applies unless --force. For a guarded container the change is in force when the command ends.
    In a container CONTAINER is left out, and a share can only be lowered.

    \b
        nvc-py share set 4f0c weight=30
        nvc-py share set team/notebook mem=20Gi,cap=75% --gpu '#0'
    """
    wanted = parse_gpu(arguments[-1])
    if inside.is_inside(share_store.chosen()) and len(arguments) == 1:
        if check:
            raise UsageError("--check is for the host's containers")
        inside.lower(wanted, selector, as_json=as_json)
        return 0
    if len(arguments) != 2:
        raise UsageError(
            "set takes a container and a share spec", hint="nvc-py share set CONTAINER mem=10Gi; see share ls"
        )
    with store.find(arguments[0], share_store.chosen()) as entry:
        if check:
            return _would_change(entry, settings, wanted, selector, force=force, as_json=as_json)
        with share_agent.guarding(entry, socket) as agent:
            fields = {"spec": arguments[1], "gpu": selector or None, "force": force or None}
            done = agent.call("set", **fields) if agent is not None else None
        if done is not None:
            _print_set(entry, cast("list[tuple[str, str]]", done["gpus"]), _AGENT_HOLDS, as_json=as_json)
            _tell("in force: the agent holds it", as_json=as_json)
            return 0
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
        gpus = [(after.gpus[place].uuid, format_gpu(as_gpu_share(after.gpus[place]))) for place in places]
        _print_set(entry, gpus, _SUPERVISOR_HOLDS if alone else _LIBRARY_HOLDS, as_json=as_json)
        if alone:
            later = "; weight and priority, when an agent answers again" if wanted.weight or wanted.priority else ""
            _tell(f"in force: the container's supervisor holds it{later}", as_json=as_json)
            return 0
        if agent is not None:
            return 0
        from nvc.share import outside

        if wanted.weight or wanted.priority:
            _report(outside.reweigh(entry, after), "weight: in force for {} processes", as_json=as_json)
        if wanted.cap:
            _say_when(entry, after, as_json=as_json)
    return 0


def _would_change(
    entry: store.Entry, settings: Settings | None, wanted: GpuShare, selector: str, *, force: bool, as_json: bool
) -> int:
    now = entry.checked_limits()
    after, places = change.changed(now, policyfile.load(), wanted, selector, lambda: _inventory(settings), force=force)
    gpus = [(after.gpus[place].uuid, format_gpu(as_gpu_share(after.gpus[place]))) for place in places]
    differs = after.gpus != now.gpus
    if as_json:
        shown = [{"gpu": uuid, "share": spec} for uuid, spec in gpus]
        click.echo(json.dumps({"container": entry.name, "gpus": shown, "changes": differs}, indent=2))
    else:
        _print_set(entry, gpus, "", as_json=False)
        click.echo("would change" if differs else "nothing to change")
    return CHANGES if differs else 0


def _print_set(entry: store.Entry, gpus: Sequence[tuple[str, str]], holds: str, *, as_json: bool) -> None:
    if as_json:
        shown = [{"gpu": uuid, "share": spec} for uuid, spec in gpus]
        click.echo(json.dumps({"container": entry.name, "gpus": shown, "held_by": holds}, indent=2))
        return
    for uuid, spec in gpus:
        click.echo(f"{entry.name[:12]} {uuid} {spec}")


@click.command()
@click.argument("container")
@_JSON
@share_agent.OPTION
def pause(container: str, as_json: bool, socket: str) -> None:
    """Keep a container off the GPU, also what it is computing now; it keeps its memory.

    Its programs wait; nothing in them fails. Allocations and copies that need the GPU wait as well.
    """
    _pause(container, socket, paused=True, as_json=as_json)


@click.command()
@click.argument("container")
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=0.0,
    metavar="SECONDS",
    help="Wait for the GPU's memory to be free.",
)
@_JSON
@share_agent.OPTION
def resume(container: str, wait: float, as_json: bool, socket: str) -> None:
    """Let a paused or suspended container go on.

    The memory of a suspended one must fit on its GPU again; --wait waits until others have freed enough.
    """
    with store.find(container, share_store.chosen()) as entry:
        if share_agent.is_suspended(entry, socket):
            with waiting(f"resuming {entry.name[:12]}"):
                share_agent.ask_long(socket, "resume", container=entry.name, wait=wait)
            _done(entry, "resumed", ": its memory is on the GPU", as_json=as_json)
            return
    _pause(container, socket, paused=False, as_json=as_json)


@click.command()
@click.argument("container")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long work that has begun may take to end.",
)
@_JSON
@share_agent.OPTION
def suspend(container: str, timeout: float, as_json: bool, socket: str) -> None:
    """Move a container's GPU memory to the host, and free it for others; its programs wait until `resume`.

    All of its processes are suspended, or none. Needs driver 570, the agent, and host memory of the same size; programs
    that share GPU memory with others (MPS, CUDA IPC, NCCL) cannot be suspended.

    \b
        nvc-py share suspend 4f0c
        nvc-py share resume 4f0c --wait=60
    """
    with store.find(container, share_store.chosen()) as entry, waiting(f"suspending {entry.name[:12]}"):
        done = share_agent.ask_long(socket, "suspend", container=entry.name, timeout=timeout)
    memory = cast("list[int]", done["memory"])
    moved = f": {share_text.size(sum(memory))} of {done['processes']} processes moved in {done['seconds']} s"
    _done(entry, "suspended", moved, as_json=as_json, bytes=sum(memory), processes=done["processes"],
          seconds=done["seconds"])  # fmt: skip


def _pause(container: str, socket: str, *, paused: bool, as_json: bool) -> None:
    state = "paused" if paused else "resumed"
    with store.find(container, share_store.chosen()) as entry:
        if paused and entry.checked_limits().paused:
            _done(entry, state, " already", as_json=as_json)
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
            _done(entry, state, holder, as_json=as_json)
            return
        from nvc.share import outside

        outcome = outside.freeze(entry, after, frozen=paused)
    if as_json:
        _done(entry, state, "", as_json=True)
    did = "stopped" if paused else "started"
    _report(outcome, f"{did} {{}} processes from outside; the others do it themselves", as_json=as_json)


def _done(entry: store.Entry, state: str, how: str, *, as_json: bool, **numbers: object) -> None:
    """What the container is now."""
    if as_json:
        click.echo(json.dumps({"container": entry.name, "state": state, **numbers}))
    else:
        click.echo(f"{entry.name[:12]} is {state}{how}")


def _tell(sentence: str, *, as_json: bool) -> None:
    """For people: on standard output, unless that is JSON."""
    click.echo(sentence, err=as_json)


def _report(outcome: Outcome, text: str, *, as_json: bool) -> None:
    for problem in outcome.problems:
        click.echo(f"warning: {problem}", err=True)
    _tell(text.format(len(outcome.done)), as_json=as_json)
    if outcome.problems:
        raise ContainerError(
            f"{len(outcome.problems)} processes were not reached", hint="they follow with their next call of the driver"
        )


def _without_cap(entry: store.Entry, gpus: int) -> list[RegionSlot]:
    found = share_rows.region_of(entry, gpus)
    return [slot for slot in found.slots if slot.channels and not slot.threads_cap] if found is not None else []


def _say_when(entry: store.Entry, changed: Limits, *, as_json: bool) -> None:
    if all(gpu.cap >= CAP_WHOLE for gpu in changed.gpus):
        return
    until = time.monotonic() + _TAKEN_UP
    while (slow := _without_cap(entry, len(changed.gpus))) and time.monotonic() < until:
        time.sleep(0.02)
    if slow:
        names = ", ".join(f"{slot.name} ({slot.pid})" for slot in slow[:4])
        _tell(f"cap: {len(slow)} processes take it up with their next call of the driver: {names}", as_json=as_json)


def _inventory(settings: Settings | None) -> Sequence[Gpu]:
    """How much memory GPUs have."""
    from nvc.base.log import open_log
    from nvc.inject import api

    general = settings or Settings()
    with general.open(api, open_log(general.debug)) as context:
        return context.inventory().gpus
