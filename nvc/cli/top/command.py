"""``nvc-py top``: each GPU's usage by container, now."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from nvc.cli.settings import Settings
from nvc.cli.share import agent as share_agent
from nvc.cli.share import store as share_store
from nvc.cli.top.order import WORDS, by_key, help_lines, ordered

if TYPE_CHECKING:
    from nvc.agent.view import Seen
    from nvc.cli.top import source as top_source
    from nvc.driver.service import DriverClient

#: Seconds between looks until NVML has said something: it answers after the first picture.
_SETTLE_S = 0.5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--once", is_flag=True, help="Print one picture, and end. Also when the output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and end.")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--sort", type=click.Choice(WORDS), default=WORDS[0], show_default=True, help="Order of containers.")
@click.option("--no-processes", is_flag=True, help="Leave the lines of processes out.")
@share_agent.OPTION
@click.option("--store", metavar="DIR", help="Where shares are kept.  [default: /run/nvc/share]")
@click.pass_obj
def top(
    settings: Settings | None,
    once: bool,
    as_json: bool,
    interval: float,
    sort: str,
    no_processes: bool,
    socket: str,
    store: str | None,
) -> None:
    """Show each GPU's usage by container, refreshed until q is pressed.

    A line for each GPU, below it one for each container with a share of it, below that its processes. Keys: q ends, h
    explains the others: processes, moving, and the order of containers.

    \b
        USED/LIMIT   memory, and what it may have
        TARGET       part of the GPU's time that the scheduler intends for it
        ACHIEVED     estimate of the part that it got, if it had work
        CAP WEIGHT   as in `nvc-py share set`
        SLICE        how long each of its groups computes in one go
        FROZEN       time that it was off the GPU: since the last look, at first all of it
        DENIED       calls that the guard refused; below, which
        ENFORCER     guard (from outside), library (in its programs), attach (time only)

    A GPU's line has its memory, `util` (part of the time in which a kernel ran, whichever process's) and `power` (what
    it draws, and may draw), both by NVML; "-" where the driver does not report it.

    The rows come from the agent (for root and members of the group nvc), and without an agent from the files of the
    preloaded library, which have neither parts of the time nor denials; the first line names the source. Where an
    agent exists and does not answer, or none listens at --agent, the rows are those of the files, and the exit code is
    1.

    \b
        nvc-py top
        nvc-py top --once --no-processes --sort=memory
        nvc-py top --once --json
        nvc-py top --json | jq '.gpus[].shares[] | {container, memory, limit}'
    """
    from nvc.cli.top import gauges as top_gauges
    from nvc.cli.top import screen as top_screen
    from nvc.cli.top import source as top_source
    from nvc.cli.top import text

    def driver() -> DriverClient:
        from nvc.base.log import open_log
        from nvc.inject import api

        general = settings or Settings()
        with general.open(api, open_log(general.debug)) as context:
            return context.driver()

    def inventory() -> dict[str, tuple[int, int]]:
        from nvc.base.log import open_log
        from nvc.inject import api

        general = settings or Settings()
        with general.open(api, open_log(general.debug)) as context:
            return {gpu.uuid: (gpu.minor, gpu.memory) for gpu in context.inventory().gpus}

    gauges = top_gauges.Gauges(driver)
    named = share_agent.has_named()
    source = top_source.Source(socket, store or share_store.usual(), inventory, gauges, named=named)
    is_once = as_json or once or not sys.stdout.isatty()
    try:
        seen = source.look(once=is_once)
        if not is_once:
            _watch(source, seen, interval, sort, processes=not no_processes)
            return
        if source.failure is not None:
            raise source.failure
        shown = ordered(seen, sort)
        if as_json:
            click.echo(json.dumps(shown.as_data(), indent=2))
        else:
            with top_screen.Screen(whole=False) as screen:
                whole = not screen.is_terminal
                screen.show(text.picture(shown, screen.size[0], processes=not no_processes, whole=whole))
        if source.silent is not None:  # a program that reads the output must not take it for everything
            raise source.silent
    finally:
        gauges.close()


def _watch(source: top_source.Source, seen: Seen, interval: float, sort: str, *, processes: bool) -> None:
    from nvc.cli.top import screen as top_screen
    from nvc.cli.top import text

    with top_screen.Screen() as screen:
        try:
            while True:
                screen.show(text.picture(ordered(seen, sort), screen.size[0], processes=processes, keys=True))
                key = screen.wait(interval if source.is_settled else min(interval, _SETTLE_S))
                if key in top_screen.END:
                    return
                if key in ("h", "H", "?"):
                    screen.show(help_lines(sort))
                    while not (key := screen.wait(interval)) or key == "resized":
                        screen.show(help_lines(sort))
                    if key == top_screen.END[0]:
                        return
                elif key in ("p", "P"):
                    processes = not processes
                elif by_key(key):
                    sort = by_key(key)
                elif key != "resized":
                    seen = source.look()
        except KeyboardInterrupt:
            return
