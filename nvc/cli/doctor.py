"""``nvc-py doctor``: look at this host and say what is wrong (a click command; nothing on the start-up path imports
this)."""

from __future__ import annotations

import os
import sys

import click

from nvc.agent.status import ask
from nvc.base.progress import waiting
from nvc.cli.main import OUR_PROGRAM, REFERENCE_PROGRAM
from nvc.cli.settings import Settings
from nvc.doctor import cgroup, kernel, report, runner, table
from nvc.doctor.engines import ask_version
from nvc.doctor.finding import worst
from nvc.doctor.probe import AgentSeen, Probe
from nvc.driver import pageable
from nvc.share import protocol


def _own() -> str:
    """The path of this program, "" where it was not started as a command that is installed."""
    path = sys.argv[0]
    installed = path.startswith("/") and os.path.basename(path) in (OUR_PROGRAM, REFERENCE_PROGRAM)
    return path if installed and os.access(path, os.X_OK) else ""


def ask_agent() -> AgentSeen | None:
    """None where no agent was ever started. Raises NvcError."""
    if not os.path.exists(protocol.CONTROL):
        return None
    with protocol.Client(protocol.CONTROL) as client:
        status = ask(client)
    guards = {of.name: one.build for one in status.tenants if one.kind == "guard" for of in one.containers}
    return AgentSeen(status.version, guards)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--only", "areas", multiple=True, type=click.Choice(tuple(table.AREAS)), help="Check this area. May be repeated."
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(table.ENGINES),
    help="Of the engines, check this one. May be repeated.",
)
@click.option("--problems", is_flag=True, help="Show warnings and errors only.")
@click.pass_obj
def doctor(
    settings: Settings | None, as_json: bool, areas: tuple[str, ...], engines: tuple[str, ...], problems: bool
) -> int:
    """Look at driver, device nodes, kernel, engines and CDI specs, and say what is wrong.

    Every finding says what is wrong, why it matters, and the command that fixes it. Nothing is changed. Without root
    some things cannot be seen; the report says which. docs/reference/doctor-checks.md explains every check.

    No check takes longer than --timeout (10 s, 30 s for NVML).

    \b
        nvc-py doctor
        nvc-py doctor --problems
        nvc-py doctor --json --only cdi --only nodes
        nvc-py doctor --only engines --engine docker
        nvc-py --sim /tmp/machine doctor
    """
    from nvc.base.log import Log, open_log
    from nvc.inject import api
    from nvc.share import preload

    general = (settings or Settings()).replace(cache=False)  # a look changes nothing, the inventory neither
    with general.open(api, open_log(general.debug) if general.debug else Log.none()) as context:
        host = context.host
        probe = Probe(
            host,
            ask=context.inventory,
            kernel_calls=kernel.try_calls,
            ask_filters=cgroup.ask_filters,
            ask_pageable=pageable.ask,
            own=_own(),
            libraries=preload.directory(),
            ask_agent=ask_agent,
            ask_version=(lambda path: "") if host.simulated else ask_version,
        )
        with waiting("looking at this host"):
            found = list(runner.run(table.choose(areas, engines), probe, general.timeout))
    if as_json:
        click.echo(report.as_json(found, simulated=host.simulated, problems=problems), nl=False)
    else:
        if host.simulated:
            click.echo(f"SIMULATED machine {host.simulated}; kernel and cgroups are this computer's", err=True)
        click.echo(report.as_text(found, colour=report.wants_colour(1), problems=problems), nl=False)
    return report.EXIT_CODES[worst(found)]
