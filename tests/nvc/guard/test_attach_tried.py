"""Objects of a client that are tried: how many questions the driver is asked, and what is made of its answers."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from nvc.bindings import rmcontrol
from nvc.guard import attach
from nvc.guard.attach import COPY_SLICE, OBJECTS, OBJECTS_TRIED
from nvc.linux.fd import Fd

CLIENT = 0xC1D00012
SUBDEVICE, CHANNEL, GROUP, COPIES, OTHER = range(OBJECTS + 2, OBJECTS + 7)
NOT_FOUND, NOT_SUPPORTED = 0x57, 0x56


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """A driver with five objects; how often it was asked about each."""
    counted: Counter[int] = Counter()

    def control(_descriptor: Fd, client: int, handle: int, command: int, parameters: bytearray) -> int:
        assert client == CLIENT
        counted[handle] += 1
        if handle not in (SUBDEVICE, CHANNEL, GROUP, COPIES, OTHER):
            return NOT_FOUND
        if handle == SUBDEVICE and command == 0x2080014A:
            parameters[12:28] = bytes(range(16))
            return 0
        if handle == CHANNEL and command == 0xC36F0108:
            return 0
        if handle in (GROUP, COPIES) and command == rmcontrol.GET_TIMESLICE:
            parameters[:] = (2048 if handle == GROUP else COPY_SLICE).to_bytes(8, "little")
            return 0
        return NOT_SUPPORTED

    monkeypatch.setattr(rmcontrol, "control", control)
    return counted


def test_what_is_there_is_told_apart(asked: Counter[int]) -> None:
    with Fd(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), "null") as node:
        groups, channels, uuids = attach._objects(node, 7, CLIENT)

    assert [(one.descriptor, one.group, one.slice) for one in groups] == [(7, GROUP, 2048)]
    assert [(one.channel, one.subdevice) for one in channels] == [(CHANNEL, SUBDEVICE)]
    assert uuids == {"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"}


def test_what_is_not_there_is_asked_about_once(asked: Counter[int]) -> None:
    """There are a thousand of them, and a running process is to be scheduled within 20 ms."""
    with Fd(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), "null") as node:
        attach._objects(node, 7, CLIENT)

    assert len(asked) == OBJECTS_TRIED
    assert {handle for handle, count in asked.items() if count > 1} == {SUBDEVICE, CHANNEL, OTHER}
