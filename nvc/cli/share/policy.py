"""``nvc-py share policy``: how the agent divides the time of GPUs."""

from __future__ import annotations

import json

import click

from nvc.agent.status import NO_TENANT, ask
from nvc.cli.groups import CHANGES
from nvc.cli.share import agent as share_agent
from nvc.guard.scheduling import POLICIES, parse_policy
from nvc.share.protocol import Client

#: What each policy does, in the order of cGPU's numbers.
MEANINGS = (
    "each at most 1 / slots of the time, also when alone",
    "equal parts for tenants with work, without caps",
    "parts by weight for tenants with work; caps hold (default)",
    "parts by weight, and never more than the cap",
    "parts by weight for tenants with work, without caps",
    "the driver's own scheduling; only memory is held",
)


@click.command("policy")
@click.argument("name", required=False)
@click.option("--gpu", metavar="UUID", default="", help="Only this GPU: its UUID, or how that begins.")
@share_agent.OPTION
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--check", is_flag=True, help="Change nothing; exit code 2: it would change something.")
def policy(name: str | None, gpu: str, socket: str, as_json: bool, check: bool) -> int:
    """Print the scheduling policy of each GPU, or set it.

    NAME is a word or cGPU's number: fair (0), preemptive (1), weighted (2), fixed (3), soft (4), native (5). It holds
    at once, for running containers too, until the agent ends; `policy` in section [agent] of /etc/nvc/config.toml is
    what it begins with. Needs the agent.

    \b
        nvc-py share policy
        nvc-py share policy soft --gpu GPU-b8058b66
    """
    wanted = parse_policy(name) if name is not None else None
    with Client(socket) as client:
        if wanted is not None and not check:
            client.call("policy", policy=wanted, gpu=gpu or None)
        status = ask(client, after=NO_TENANT)
    chosen = [one for one in status.gpus if one.uuid.lower().startswith(gpu.lower())]
    if as_json:
        click.echo(json.dumps([{"gpu": one.uuid, "policy": one.policy} for one in chosen], indent=2))
    for one in chosen if not as_json else ():
        meaning = MEANINGS[POLICIES.index(one.policy)] if one.policy in POLICIES else ""
        click.echo(f"{one.uuid} {one.policy}: {meaning}")
    return CHANGES if check and wanted is not None and any(one.policy != wanted for one in chosen) else 0
