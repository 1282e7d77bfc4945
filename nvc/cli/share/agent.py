"""A change of a guarded container's share goes to the agent, which puts it into force at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from nvc.agent.status import ask
from nvc.agent.view import service_notes
from nvc.base.errors import AgentError, NvcError, PrivilegeError
from nvc.linux.process import process_name
from nvc.share.processes import inner_pid
from nvc.share.protocol import CONTROL, Client, NoAgent
from nvc.share.view import ShareProcess

if TYPE_CHECKING:
    from nvc.agent.status import StatusTenant
    from nvc.share.limits import Limits
    from nvc.share.store import Entry
    from nvc.share.view import ShareRow


#: Seconds for memory that is moved, and for what is waited for before.
_LONG = 7200.0


class Told:
    """A guarded container, and the agent that guards it."""

    def __init__(self, client: Client, container: str) -> None:
        self._client, self._container = client, container

    def call(self, verb: str, **fields: object) -> dict[str, object] | None:
        """The agent's answer; None, with a warning, when it did not do it: then the limits file alone is to be changed.

        Raises what the agent says against the change.
        """
        try:
            return self._client.call(verb, container=self._container, **fields)
        except AgentError as error:
            click.echo(f"warning: {error}; it looks at the share by itself", err=True)
            return None


#: Of the commands that ask the agent.
OPTION = click.option(
    "--agent", "socket", metavar="SOCKET", default=CONTROL, show_default=True, help="The agent's control socket."
)


def guarded(
    rows: Iterable[ShareRow], socket: str, container: str = "", *, pids: bool = True
) -> tuple[list[ShareRow], NvcError | None]:
    """The rows, with what their guard knows of those that are guarded: from the agent, or from their supervisors.

    container: the one that all of the rows are of. pids: look up their processes' names, and pids in the container.
    Beside them why an agent that is there, or that --agent names, gave no status.
    """
    silent: NvcError | None = None
    try:
        with Client(socket) as client:
            tenants = ask(client, container=container).tenants
    except (AgentError, PrivilegeError) as error:
        tenants = away(socket)
        silent = missed(error, socket, named=has_named())
    names = {one.name: tenant for tenant in tenants if tenant.kind == "guard" for one in tenant.containers}
    return [_guarded(row, names.get(row.container) or names.get(row.key), pids=pids) for row in rows], silent


def has_named() -> bool:
    """Whether this call has --agent: then its agent is expected to be there; many hosts have none."""
    return click.get_current_context().get_parameter_source("socket") is ParameterSource.COMMANDLINE


def missed(error: NvcError, socket: str, *, named: bool) -> NvcError | None:
    """What to say of an agent that gave no status; None where none listens, and none was named."""
    if not isinstance(error, NoAgent):
        return error
    if not named:
        return None
    if os.path.isdir(socket):
        return NoAgent(error.message, hint=f"that is a directory: --agent {socket.rstrip('/')}/control")
    return NoAgent(error.message, hint=f"correct --agent, or leave it out for {CONTROL}; {error.hint}")


def away(socket: str) -> tuple[StatusTenant, ...]:
    """The tenants of an agent that does not answer; none for a user who is not root."""
    from nvc.agent import away

    try:
        return away.tenants(os.path.dirname(socket))
    except PermissionError:
        return ()


def _guarded(row: ShareRow, tenant: StatusTenant | None, *, pids: bool) -> ShareRow:
    if tenant is None:
        return row
    places = [place for place, gpu in enumerate(tenant.gpus) if gpu.uuid == row.gpu]
    if not places:
        return row.replace(guard=tenant.build)
    place, gpu = places[0], tenant.gpus[places[0]]
    processes = tuple(
        ShareProcess(
            inner_pid(one.pid) if pids else 0, one.pid, process_name(one.pid) if pids else "", one.memory[place]
        )
        for one in tenant.processes
    )
    if tenant.suspended and tenant.suspended[place]:
        row = row.replace(notes=(*row.notes, f"{tenant.suspended[place] >> 20} MiB on the host"))
    shared = (f"{tenant.container}: memory and processes of {len(tenant.containers)} containers",)
    return row.replace(
        used=gpu.memory,
        managed=gpu.managed,
        groups=gpu.groups,
        frozen_ns=gpu.frozen_ns,
        target=gpu.target_ratio or None,
        achieved=gpu.achieved_ratio if gpu.target_ratio or gpu.is_measured else None,
        is_measured=gpu.is_measured,
        suspended=tenant.suspended[place] if tenant.suspended else 0,
        processes=processes,
        guard=tenant.build,
        notes=(*row.notes, *(shared if len(tenant.containers) > 1 else ()), *service_notes(gpu.service)),
        latency=gpu.latency_us,
        bound=gpu.bound_us,
        service=gpu.service,
    )


def is_suspended(entry: Entry, socket: str) -> bool:
    """Whether a container's memory is on the host, by what the agent wrote down; False for a user who is not root."""
    from nvc.agent.state import records

    try:
        found = records.of_entry(os.path.dirname(socket), entry.record.key, entry.record.container, entry.record.pid)
    except PermissionError:
        return False
    return found is not None and found.suspended is not None


def ask_long(socket: str, verb: str, **fields: object) -> dict[str, object]:
    """What the agent answers after minutes at most. Raises NvcError."""
    with Client(socket, _LONG) as client:
        return client.call(verb, **fields)


def check_without(entry: Entry, after: Limits, socket: str) -> None:
    """Whether changed limits could be kept where no agent put them into force. Raises ContainerError."""
    from nvc.agent import away

    away.check(os.path.dirname(socket), entry, after)


def without(entry: Entry, after: Limits, socket: str) -> bool:
    """Put changed limits into force where no agent did; False: the container is not guarded. Raises NvcError."""
    from nvc.agent import away

    return away.put_in_force(os.path.dirname(socket), entry, after)


@contextlib.contextmanager
def guarding(entry: Entry, socket: str) -> Iterator[Told | None]:
    """The agent at ``socket`` when it guards the container of ``entry``, else None."""
    record = entry.record
    try:
        client = Client(socket)
    except (AgentError, PrivilegeError) as error:
        if not isinstance(error, NoAgent):
            click.echo(f"warning: {error}; the change is made without the agent", err=True)
        yield None
        return
    with client:
        name = ""
        try:
            tenants = ask(client, container=entry.name).tenants
        except (AgentError, PrivilegeError) as error:
            click.echo(f"warning: {error}; the change is made without the agent", err=True)
            tenants = ()  # as without one: it looks at the limits file by itself
        for tenant in tenants:
            for one in tenant.containers if tenant.kind == "guard" else ():
                # An agent may serve another store, whose containers have other first processes.
                if one.name in (record.container, record.key) and (not record.pid or one.pid == record.pid):
                    name = tenant.container
        yield Told(client, name) if name else None
