"""``nvc-py share hint``: what a service's operator knows of its work."""

from __future__ import annotations

import json

import click

from nvc.cli.share import agent as share_agent
from nvc.cli.share.store import known
from nvc.guard.service import HINT_NS, HINTS, SOON
from nvc.share.protocol import Client


@click.command("hint")
@click.argument("container")
@click.argument("word", type=click.Choice(HINTS))
@share_agent.OPTION
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def hint(container: str, word: str, socket: str, as_json: bool) -> None:
    """Give the agent a hint: a service (priority=service) will have work, or has none.

    While a service has work, the other tenants' timeslices are short. Beside more than one other context the agent
    takes the service for idle after some seconds without work, and its next request waits longer. `soon` before that
    request keeps or makes the timeslices short; `done` makes them long at once.

    \b
        nvc-py share hint 4f0c soon
        nvc-py share hint 4f0c done
    """
    container = known(container)
    with Client(socket) as client:
        done = client.call("hint", container=container, word=word)
    if as_json:
        click.echo(json.dumps({"container": done["container"], "hint": word}))
        return
    said = f"work is announced for {HINT_NS // 10**9} s" if word == SOON else "idle until it computes"
    click.echo(f"{str(done['container'])[:12]}: {said}")
