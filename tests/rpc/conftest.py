"""Helpers that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpc.client import Client
from rpc.method import Service
from rpc.process import start
from tests.support.demo_service import SERVICE, handlers, sleeping


@pytest.fixture
def running() -> Iterator[Callable[..., Client]]:
    """``start`` that closes at the end of the test."""
    clients: list[Client] = []

    def begin(run: Any = sleeping, service: Service = SERVICE, **options: Any) -> Client:
        clients.append(start(service, handlers(run), **options))
        return clients[-1]

    yield begin
    for client in clients:
        client.close()
