"""``nvc-py share usage``: what containers used of GPUs, by what the agent wrote down."""

from __future__ import annotations

import json
import os
import time

import click

from nvc.agent import accounting
from nvc.base.errors import AgentError, PrivilegeError, reason
from nvc.cli.share import agent as share_agent
from nvc.cli.share import text
from nvc.cli.share.events import begin
from nvc.share import store
from nvc.share.protocol import Client, NoAgent

_HEADINGS = ("CONTAINER", "NAME", "GPU", "SECONDS", "COMPUTED", "ENERGY", "MEAN", "PEAK")
_SHORT, _WATT_HOUR = 12, 3600


class _Sum:
    """Of a container and a GPU."""

    def __init__(self) -> None:
        self.seconds = self.computed = self.byte_seconds = 0.0
        self.peak = 0
        #: Joules; None: of no interval known.
        self.energy: float | None = None

    def add(self, used: accounting.Used) -> None:
        self.seconds += used.end - used.begin
        self.computed += used.computed
        self.byte_seconds += used.byte_seconds
        self.peak = max(self.peak, used.peak)
        if used.energy is not None:
            self.energy = (self.energy or 0.0) + used.energy

    @property
    def mean(self) -> int:
        """Bytes."""
        return int(self.byte_seconds / self.seconds) if self.seconds else 0


@click.command("usage")
@click.option("--since", metavar="WHEN", default="1h", show_default=True, help="90s, 10m, 2d, or a time.")
@click.option("--container", metavar="ID", default="", help="Only of containers of this id or name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@share_agent.OPTION
def usage(since: str, container: str, as_json: bool, socket: str) -> None:
    """Print what guarded containers used of GPUs, those that have ended too.

    COMPUTED are seconds of a GPU in which the container computed, by the driver's samples; SECONDS how long it had the
    share; ENERGY what the GPU's counter grew by, times the part of the time in which the container computed ("-": not
    known); MEAN and PEAK its memory, looked at every five seconds and when it is suspended or resumed.

    \b
        nvc-py share usage --since=1d
        nvc-py share usage --since="2026-11-21 08:00" --container=4f0c --json
    """
    now = time.time()
    try:
        with Client(socket) as client:
            client.call("usage")
    except NoAgent:
        pass  # what was written down before is there
    except (AgentError, PrivilegeError) as error:
        click.echo(f"warning: {error}; the last minutes are not included", err=True)
    sums: dict[tuple[str, str, str], _Sum] = {}
    directory = os.path.dirname(socket)
    try:
        for used in accounting.read(directory, begin(since, now), now + 1):
            if used.container.startswith(container) or store.is_named(used.name, container):
                sums.setdefault((used.container, used.name, used.gpu), _Sum()).add(used)
    except PermissionError as error:
        raise PrivilegeError(f"{accounting.path(directory)}: {reason(error)}", hint="root may read it") from None
    if as_json:
        click.echo(json.dumps([_as_data(*key, found) for key, found in sums.items()], indent=2))
    else:
        click.echo(_table(sums))
        if not sums:
            where = accounting.path(directory)
            has = "has no guarded container since then" if os.path.exists(where) else "does not exist"
            click.echo(f"{where} {has}; the agent writes it when a guarded container has used a GPU", err=True)


def _as_data(container: str, name: str, gpu: str, found: _Sum) -> dict[str, object]:
    return {
        "container": container,
        "name": name,
        "gpu": gpu,
        "seconds": round(found.seconds, 3),
        "computed_seconds": round(found.computed, 3),
        "energy_joules": None if found.energy is None else round(found.energy, 3),
        "mean_bytes": found.mean,
        "peak_bytes": found.peak,
    }


def _table(sums: dict[tuple[str, str, str], _Sum]) -> str:
    cells = [_HEADINGS]
    for (container, name, gpu), found in sums.items():
        energy = "-" if found.energy is None else f"{found.energy / _WATT_HOUR:.1f} Wh"
        memory = text.size(found.mean), text.size(found.peak)
        numbers = f"{found.seconds:.0f}", f"{found.computed:.1f}", energy, *memory
        cells.append((container[:_SHORT], name or "-", gpu[:_SHORT], *numbers))
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
