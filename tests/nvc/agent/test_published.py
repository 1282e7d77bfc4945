"""Supervisors tell that they published something: one with an attacker's code keeps no reader from the others'."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nvc.agent.waiting import Published
from nvc.guard import publications as module
from nvc.guard.publications import Publications

#: eventpoll.c, path_limits: so many ways from a file to a waiter, by way of one other epoll descriptor.
PATHS = 500


@contextlib.contextmanager
def told(count: int) -> Iterator[tuple[Publications, list[int]]]:
    """Tenants by the numbers 0 to ``count``, and what their supervisors write to."""
    files = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(count)]
    held: list[Any] = [SimpleNamespace(published=file) for file in files]
    publications = Publications()
    for number, one in enumerate(held):
        publications.add(number, one)
    try:
        yield publications, files
    finally:
        for number, one in enumerate(held):
            publications.drop(number, one)
        publications.close()
        for file in files:
            os.close(file)


def hears(publications: Publications, number: int, file: int) -> bool:
    """Whether a caller that waits for this tenant hears of what it publishes a little later, in time."""

    async def run() -> bool:
        published = Published(publications)
        asyncio.get_running_loop().call_later(0.05, os.eventfd_write, file, 1)
        publications.collect()  # what was there before
        return await published.wait(number, 5)

    return asyncio.run(run())


def test_who_waits_for_a_tenant_hears_of_it() -> None:
    with told(2) as (publications, files):
        assert hears(publications, 1, files[1])


def test_a_supervisor_with_all_ways_to_its_file_hides_no_other_one() -> None:
    """An epoll descriptor in that of the agent's loop was one way more: EINVAL, for all tenants."""
    with told(2) as (publications, files), contextlib.ExitStack() as stack:
        between = stack.enter_context(select.epoll())
        between.register(files[0], select.EPOLLIN)
        for _ in range(PATHS):
            stack.enter_context(select.epoll()).register(between, select.EPOLLIN)
        assert hears(publications, 1, files[1])


def test_supervisors_that_write_all_the_time_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as one call tells of: each time there were as many again."""
    monkeypatch.setattr(module, "_EVENTS", 4)
    with told(8) as (publications, files):
        heard = []

        def again(number: int) -> None:
            heard.append(number)
            assert len(heard) < 1000, "it does not end"
            os.eventfd_write(files[number], 1)

        reader = publications.reader()
        publications.listen(again)
        for file in files:
            os.eventfd_write(file, 1)
        assert reader.take() == set(range(8))
