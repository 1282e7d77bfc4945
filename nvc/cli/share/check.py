"""``nvc-py share check``: what a container would get, and from which rule, without a container (a click command)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from nvc.agent.status import NO_TENANT, ask
from nvc.base.errors import InputError, NvcError, PrivilegeError
from nvc.cli.settings import Settings
from nvc.guard.registered import SECONDS, control
from nvc.request.injection import ShareRequest
from nvc.share import abi, memory, policyfile
from nvc.share.policy import as_gpu_share, guarded, origins
from nvc.share.preview import preview
from nvc.share.protocol import Client, NoAgent
from nvc.share.sources import leaves_guard, requested
from nvc.share.spec import format_cap, format_latency, format_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from nvc.model import Gpu, Selection
    from nvc.share.model import Resolved, ResolvedGpu
    from nvc.share.policy import Policy

SHARE, GUARD = "nvc.share", "nvc.guard"
#: Enforcers that a container would have, and what it is where there is none.
HELD, LIBRARY, REFUSED = "guard", "library", "refused"


@click.command("check")
@click.option("--annotation", "annotations", metavar="KEY=VALUE", multiple=True, help="An annotation of the container.")
@click.option("--env", "environment", metavar="NAME=VALUE", multiple=True, help="A variable of the container.")
@click.option("--share", "option", metavar="SPEC", default="", help="As --share of configure and of a CDI hook.")
@click.option("--fixed", metavar="SPEC", multiple=True, help="As --share-fixed of configure, nvc-hook and a CDI hook.")
@click.option("--device", "devices", metavar="ID[,ID...]", default="all", show_default=True, help="Its GPUs.")
@click.option("--config", metavar="FILE", default="", help="The node's rules.  [default: /etc/nvc/config.toml]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def check(
    settings: Settings | None,
    annotations: tuple[str, ...],
    environment: tuple[str, ...],
    option: str,
    fixed: tuple[str, ...],
    devices: str,
    config: str,
    as_json: bool,
) -> None:
    """Print which share a container would get, and where each setting comes from; nothing is started or changed.

    A setting comes from --share-fixed, --share, nvc.share, a variable, or the node's default or maximum.
    Exit code 1: such a container would not start.

    \b
        nvc-py share check --annotation nvc.share=mem=10Gi,cap=50%
        nvc-py share check --env NVC_SHARE=mem=10Gi --device 0 --json
        nvc-py share check --fixed GPU-b8058b66-3950-5eb2-94c2-df90166ee487:mem=10Gi --annotation nvc.share=off
    """
    notes, variables = _pairs("--annotation", annotations), _pairs("--env", environment)
    if config and not config.startswith("/"):
        raise InputError(f"--config {config!r} is not an absolute path")
    request = ShareRequest(
        notes.get(SHARE, ""),
        option,
        variables,
        config,
        guard_off=notes.get(GUARD, "on").strip().lower() == "off",
        fixed=fixed,
    )
    try:
        found = answer(settings, request, devices.split(","))
    except NvcError as error:
        if not as_json:
            raise
        found = {"outcome": REFUSED, "message": str(error), "hint": error.hint}
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _print(found)
    if found["outcome"] == REFUSED:
        click.get_current_context().exit(1)


def _pairs(option: str, words: Iterable[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not name or not equals:
            lacks = "value" if name else "name"
            raise InputError(f"{option} {name + equals!r} has no {lacks}", hint=f"{option} NAME=VALUE")
    return {name: value for name, _, value in pairs}


def answer(settings: Settings | None, request: ShareRequest, devices: Sequence[str]) -> dict[str, Any]:
    """What ``--json`` prints. Raises NvcError for a container that would not start."""
    from nvc.base.log import open_log
    from nvc.inject import api

    general = settings or Settings()
    policy, directory = policyfile.load_node(request.config)
    warnings: list[str] = []
    with general.open(api, open_log(general.debug)) as context:
        selection, driver = context.select(devices), context.driver_info()
    resolved = preview(policy, request, selection, driver, warnings.append)
    if resolved is None:
        return {"outcome": "none", "source": "", "warnings": warnings, "gpus": []}
    behind, alone = _enforcers(guarded(policy, resolved), request, driver.nvrm_version)
    if resolved.needs_guard:
        behind, alone = (HELD if held == HELD else REFUSED for held in (behind, alone))
    agent = ""
    if behind == HELD:
        agent, starts = _agent(directory)
        behind = HELD if starts else REFUSED
    return {
        "outcome": "share" if {behind, alone} != {REFUSED} else REFUSED,
        "source": resolved.source,
        "text": resolved.text,
        "group": resolved.group,
        "gpus": _gpus(policy, request, selection, resolved),
        "enforcer": {"nvc-runtime": behind, "other runtimes": alone, "agent": agent},
        "warnings": warnings,
    }


def _gpus(policy: Policy, request: ShareRequest, selection: Selection, resolved: Resolved) -> list[dict[str, Any]]:
    said = requested(policy, request)
    if said is not None and resolved.source != said.source:
        said = None  # refused, and the node's rules hold
    rules = origins(policy, selection.gpus, said, resolved.gpus)
    index = {gpu.uuid: gpu for gpu in selection.gpus}
    return [
        {
            "gpu": gpu.uuid,
            "index": index[gpu.uuid].index,
            "settings": {
                name: {"value": value, "rule": rules[place][name]} for name, value in _shown(gpu, index[gpu.uuid])
            },
        }
        for place, gpu in enumerate(resolved.gpus)
    ]


def _shown(gpu: ResolvedGpu, whole: Gpu) -> list[tuple[str, str]]:
    share = as_gpu_share(gpu)
    return [
        ("mem", memory.text(share) if gpu.request else format_memory(gpu.memory or whole.memory)),
        ("cap", format_cap(share.cap)),
        ("weight", str(gpu.weight or "10")),
        ("priority", gpu.priority),
        *([("latency", format_latency(gpu.latency))] if gpu.latency else []),
        *([("idle", f"{gpu.idle}s")] if gpu.idle else []),
        ("oversubscribe", "on" if gpu.oversubscribe else "off"),
    ]


def _enforcers(policy: Policy, request: ShareRequest, version: str) -> tuple[str, str]:
    """Behind nvc-runtime with an agent, and otherwise."""
    without = REFUSED if policy.guard == "require" else LIBRARY
    if policy.guard == "off":
        return LIBRARY, LIBRARY
    if leaves_guard(policy, request):
        return LIBRARY, LIBRARY
    if policy.guard == "require" and request.guard_off and not request.fixed:
        return REFUSED, REFUSED
    return (HELD if abi.knows(version) else without), without


def _agent(directory: str) -> tuple[str, bool]:
    """Whether it answers, and whether a container starts behind nvc-runtime now: not where an agent is silent."""
    try:
        with Client(control(directory), SECONDS, wait=SECONDS) as client:
            ask(
                client, after=NO_TENANT
            )  # a connection alone says nothing: the socket's queue has room for a stopped one
    except NoAgent:
        return f"none at {directory}; until one runs, as with other runtimes", True
    except NvcError as error:
        return str(error), isinstance(error, PrivilegeError)  # an answer that this user may not have
    return directory, True


def _print(found: dict[str, Any]) -> None:
    for warning in found["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    if found["outcome"] == "none":
        click.echo("no share: the container has the whole of its GPUs")
        return
    group = f", in group {found['group']}" if found["group"] else ""
    click.echo(f"share by {found['source']}{group}: {found['text']}")
    for gpu in found["gpus"]:
        click.echo(f"GPU {gpu['index']} {gpu['gpu']}")
        for name, setting in gpu["settings"].items():
            click.echo(f"    {name:<14}{setting['value']:<12}{setting['rule'] or '-'}")
    held = found["enforcer"]
    words = {HELD: "enforced by the guard", LIBRARY: "enforced by the preloaded library", REFUSED: "does not start"}
    agent = f" (agent: {held['agent']})" if held["agent"] else ""
    click.echo(f"with nvc-runtime: {words[held['nvc-runtime']]}{agent}")
    click.echo(f"with other runtimes: {words[held['other runtimes']]}")
