"""``nvc-py agent``: the long-lived side, in the foreground (docs/user/agent.md)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from nvc.agent import pageable
from nvc.agent.accounting import Accounting
from nvc.agent.agent import Agent, AgentOptions
from nvc.agent.energy_counters import EnergyCounters
from nvc.agent.idle import Idleness
from nvc.agent.journal import Journal
from nvc.agent.notify import Systemd
from nvc.agent.parts import Metrics, Prefork, Scheduling
from nvc.agent.probing import Probing
from nvc.agent.ranges import Ranges
from nvc.agent.settings import load
from nvc.agent.suspending import Suspending
from nvc.agent.xids import Xids
from nvc.base.errors import NvcError, PrivilegeError
from nvc.cli.settings import Settings
from nvc.driver.pageable import ask
from nvc.driver.places import cache_path
from nvc.model import Host
from nvc.sim import host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.model import Gpu


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--directory", metavar="DIR", default="", help="Its sockets.  [default: its settings', /run/nvc/agent]")
@click.option("--store", metavar="DIR", default=AgentOptions().shares, show_default=True, help="Where shares are kept.")
@click.option("--config", metavar="FILE", default="", help="Its settings.  [default: /etc/nvc/config.toml]")
@click.pass_obj
def agent(settings: Settings | None, directory: str, store: str, config: str) -> None:
    """Guard containers with a share, schedule them, and answer questions about them, until SIGTERM.

    Containers get under its guard when nvc-runtime starts them, or any runtime with a seccomp profile made by
    `nvc-py seccomp`. Each has two processes of its own, which guard it also while no agent runs; containers that start
    meanwhile wait for the next agent, for a minute.

    It logs one JSON object a line on stderr. SIGHUP: read /etc/nvc/config.toml again.

    \b
        systemctl start nvc-agent         as a service
        nvc-py agent                      here
    """
    if os.geteuid() != 0:
        raise PrivilegeError("the agent is root's", hint="it copies descriptors of containers' processes")
    journal = Journal()
    general = settings or Settings()
    devices = f"{os.path.realpath(general.sim)}/dev" if general.sim else "/dev"
    directory = directory or load(config).directory
    options = AgentOptions(os.path.realpath(directory), os.path.realpath(store), devices, config)
    # Before anything of ours has threads: it forks.
    inventory = _inventory(general, journal)
    pageable.tell(lambda: ask(host(general.sim) if general.sim else Host()), journal)
    # Accounting gets a tenant's end first: the others still know what it used.
    machine = host(general.sim) if general.sim else Host(root=general.root, ldcache=general.ldcache)
    counters = EnergyCounters(machine, general.uid, general.gid)
    suspending, idleness = Suspending(), Idleness()
    moving = (suspending, idleness, Ranges(suspending, idleness))
    parts = (Accounting(counters), Scheduling(), Probing(), *moving, Xids(), Metrics(), Prefork(cache_path(machine)))
    made = Agent(options, journal, inventory, parts)
    asyncio.run(made.run(Systemd(os.environ)))


def _inventory(general: Settings, journal: Journal) -> Sequence[Gpu]:
    from nvc.base.log import open_log
    from nvc.inject import api

    try:
        with general.open(api, open_log(general.debug)) as context:
            return context.inventory().gpus
    except NvcError as error:
        journal.write("warning", message=f"this machine's GPUs are not known: {error}", hint=error.hint)
        return ()
