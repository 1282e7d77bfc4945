"""``nvc-py share events``: the agent's events, one a line, from its log and from the agent itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from nvc.base.errors import AgentError, InputError, reason
from nvc.cli.share import agent as share_agent
from nvc.cli.share.store import known
from nvc.share.protocol import Client

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

UNIT = "nvc-agent.service"
#: The default of --since.
USUAL = "1h"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Seconds until an agent that went away is tried again.
_RECONNECT_S = 1.0
#: Printed first, and not as fields: the time; the moment of the call, which is the time to a second.
_FIRST = ("time", "event", "when")


@click.command("events")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one JSON object a line.")
@click.option("--since", metavar="WHEN", help=f"Past ones, from the agent's log: 90s, 10m, {USUAL}, 2d, or a time.")
@click.option("-f", "--follow", is_flag=True, help="New ones as they come, until interrupted.")
@click.option("--container", metavar="ID", default="", help="Only of this container: its id or name.")
@click.option("--kind", metavar="EVENT", multiple=True, help="Only these events, denial for example. May be repeated.")
@share_agent.OPTION
def events(as_json: bool, since: str | None, follow: bool, container: str, kind: tuple[str, ...], socket: str) -> None:
    """Print the agent's events: calls that were refused, containers that came and went, changes.

    Without options, the last hour. Past events are in the journal of nvc-agent; new ones come from the agent, and when
    it ends, the command connects again.

    A denial says container, reason, number (the driver's escape, class or control), pid of the caller on this host and
    its program (empty when it has ended); repeated is how often the same happened again before it was read.

    \b
        nvc-py share events --since=10m --kind=denial
        nvc-py share events --follow --container=4f0c
        nvc-py share events --json --since="2026-11-21 08:00" | jq -r .reason | sort | uniq -c
    """
    source: Iterable[dict[str, Any]]
    container = known(container) if container else ""
    if since is None and follow:
        source = _from_agent(socket)
    else:
        source = _from_journal(begin(since or USUAL, time.time()), follow=follow)
    others: set[str] = set()
    shown = False
    try:
        for event in source:
            others.add(_value(event["event"]))
            if kind and event.get("event") not in kind:
                continue
            if container and not str(event.get("container", "")).startswith(container):
                continue
            click.echo(json.dumps(event) if as_json else line(event))
            shown = True
    except KeyboardInterrupt:
        return
    if not shown:
        click.echo(_nothing(since or USUAL, others), err=True)


def _nothing(since: str, others: set[str]) -> str:
    """Why nothing was printed: an empty output looks like a node on which nothing was refused."""
    if others:
        return f"none of these events since {since}; there are {', '.join(sorted(others))}"
    readers = "" if os.geteuid() == 0 else "; root and the groups adm and systemd-journal may read it"
    return f"the journal of {UNIT} has no event since {since}{readers}"


def begin(text: str, now: float) -> float:
    """Seconds since 1970 that "10m" (ago), "2026-11-21 08:00" or "@1700000000" mean. Raises InputError."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found:
        return now - int(found[1]) * _UNITS[found[2]]
    if re.fullmatch(r"@[0-9]{1,12}", text):
        return float(text[1:])
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f"--since={text[:40]!r} is no time", hint="write 90s, 10m, 1h or 2d ago, or 2026-11-21 08:00"
        ) from None


def line(event: dict[str, Any]) -> str:
    """An event for people: when, what, and its fields."""
    seconds = event.get("time")
    known = isinstance(seconds, int | float) and 0 <= seconds < 1 << 36
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if known else "?"
    fields = [f"{name}={_value(value)}" for name, value in event.items() if name not in _FIRST]
    return " ".join([when, _value(event.get("event", "?")), *fields])


def parse(text: str) -> dict[str, Any] | None:
    """The event of a line of the log; None for a line that is not the agent's."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    # Some of it is a tenant's: nothing in it is for the terminal, and each event stays one line of words.
    return text if text.isprintable() and text and not set(text) & {" ", '"', "="} else json.dumps(text)


def _from_journal(since: float, *, follow: bool) -> Iterator[dict[str, Any]]:
    command = ["journalctl", f"--unit={UNIT}", "--output=cat", "--no-pager", "--quiet", f"--since=@{int(since)}"]
    if follow:
        command += ["--follow", "--lines=all"]
    try:
        reader = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise AgentError(
            f"journalctl: {reason(error)}",
            hint="past events are in systemd's journal; --follow shows new ones, and the agent's stderr has them all",
        ) from None
    with reader:
        try:
            assert reader.stdout is not None and reader.stderr is not None
            for text in reader.stdout:
                event = parse(text)
                if event is not None:
                    yield event
            said = reader.stderr.read().strip()
        finally:
            reader.terminate()
    if reader.returncode not in (0, 1) or (reader.returncode and said):
        raise AgentError(
            f"journalctl: {said or f'ended with {reader.returncode}'}", hint="--follow asks the agent itself"
        )


def _from_agent(socket: str) -> Iterator[dict[str, Any]]:
    client = Client(socket)  # the first time, an agent that is not there ends it
    why = ""

    def begun() -> None:
        if why:
            click.echo("the agent is there again", err=True)

    while True:
        with client:
            try:
                yield from client.events(begun)
                why = "the agent ended"
            except AgentError as error:
                why = error.message
        click.echo(f"{why}; trying again", err=True)
        while True:
            time.sleep(_RECONNECT_S)
            try:
                client = Client(socket)
            except AgentError:
                continue
            break
