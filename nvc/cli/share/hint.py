"""``nvc-py share hint``: tell the agent that a service will have work soon, or has none."""

from __future__ import annotations

import json

import click

from nvc.cli.share.store import known
from nvc.guard.protocol import CONTROL, Client
from nvc.guard.service import HINT_NS, HINTS, SOON


@click.command("hint")
@click.argument("container")
@click.argument("word", type=click.Choice(HINTS))
@click.option("--agent", "socket", metavar="SOCKET", default=CONTROL, help="The agent's control socket.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def hint(container: str, word: str, socket: str, as_json: bool) -> None:
    """Tell when a service (priority=service) will have work, or has none.

    The others' slices beside a service are short while it has work. Beside more than one context of others the agent
    takes it for idle after some seconds without work; its next request waits longer then. `soon`, said before that
    request, keeps or makes them short; `done` lets the others have their long slices at once.

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
