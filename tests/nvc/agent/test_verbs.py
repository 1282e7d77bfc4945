"""A change of a tenant's share is in force when the verb returns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent import agent as agent_module
from nvc.base.errors import AgentError


def put_in_force(answers: list[bool]) -> None:
    """answers: of ``Tenants.refresh``, in turn; False while the driver makes a call for the tenant."""
    agent: Any = SimpleNamespace(tenants=SimpleNamespace(refresh=lambda tenant: answers.pop(0)), parts=())
    tenant: Any = SimpleNamespace(name="c1")
    asyncio.run(agent_module.Agent.put_in_force(agent, tenant))


def test_a_call_of_the_driver_is_waited_for() -> None:
    answers = [False, False, True, False]
    put_in_force(answers)
    assert answers == [False]


def test_a_call_that_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "IN_FORCE", 0.02)
    with pytest.raises(AgentError, match="container c1: the driver has not ended a call of it") as caught:
        put_in_force([False] * 1000)
    assert "in force when that call has ended" in caught.value.hint
