"""A change of a tenant's share is in force when the verb returns."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent import agent as agent_module
from nvc.agent.waiting import Published
from nvc.base.errors import AgentError
from nvc.guard.publications import Publications


def put_in_force(answers: list[bool]) -> None:
    """answers: of ``Tenants.refresh``, in turn; False while the driver makes a call for the tenant."""
    told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    held: Any = SimpleNamespace(published=told)
    tenant: Any = SimpleNamespace(name="c1", number=7)

    def refresh(_: object) -> bool:
        os.eventfd_write(told, 1)  # its supervisor publishes, soon
        return answers.pop(0)

    async def run() -> None:
        publications = Publications()
        publications.add(7, held)
        agent: Any = SimpleNamespace(
            tenants=SimpleNamespace(refresh=refresh), parts=(), _published=Published(publications)
        )
        try:
            await agent_module.Agent.put_in_force(agent, tenant)
        finally:
            publications.drop(7, held)
            publications.close()

    try:
        asyncio.run(run())
    finally:
        os.close(told)


def test_a_call_of_the_driver_is_waited_for() -> None:
    answers = [False, False, True, False]
    put_in_force(answers)
    assert answers == [False]


def test_a_call_that_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "IN_FORCE", 0.02)
    with pytest.raises(AgentError, match="container c1: the driver has not ended a call of it") as caught:
        put_in_force([False] * 1000)
    assert "in force when that call has ended" in caught.value.hint
