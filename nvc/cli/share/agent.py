"""A change of a guarded container's share goes to the agent, which puts it into force at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from nvc.agent.status import AgentStatus
from nvc.base.errors import AgentError, PrivilegeError
from nvc.base.record import DecodeError
from nvc.guard.protocol import Client

if TYPE_CHECKING:
    from nvc.share.store import Entry


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


@contextlib.contextmanager
def guarding(entry: Entry, socket: str) -> Iterator[Told | None]:
    """The agent at ``socket`` when it guards the container of ``entry``, else None."""
    record = entry.record
    try:
        client = Client(socket)
    except (AgentError, PrivilegeError):
        yield None
        return
    with client:
        name = ""
        try:
            tenants = AgentStatus.from_data(client.call("status")).tenants
        except (AgentError, PrivilegeError, DecodeError):
            tenants = ()  # as without one: it looks at the limits file by itself
        for tenant in tenants:
            if tenant.kind == "guard" and tenant.container in (record.container, record.key):
                # An agent may serve another store, whose containers have other first processes.
                name = tenant.container if not record.pid or tenant.pid == record.pid else ""
        yield Told(client, name) if name else None
