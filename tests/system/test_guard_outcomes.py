"""Processes of a container that start together: the group of one waits until what the others' calls made shows."""

from __future__ import annotations

import errno
import select
from pathlib import Path

import pytest

from tests.support.attacks import SOURCES
from tests.support.spoken import Spoken
from tests.support.tenants import Tenants, build_static, guarded, prepare

pytestmark = pytest.mark.root
PROCESSES, ROUNDS = 6, 40
#: Of all groups at a time: 4.5 MiB each, charged until their process ends, for their files are closed without a FREE.
MEMORY = PROCESSES * ROUNDS * (5 << 20)


def started(tenants: Tenants, attack: Path) -> None:
    tenants.add(1, memory=MEMORY)
    together = [tenants.start(attack, "starts", str(ROUNDS), tenant=1) for _ in range(PROCESSES)]
    for process in together:
        assert process.stdout
        assert process.stdout.readline() == "begun=1\n"
    for process in together:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()

    said = [process.communicate("\n", timeout=60)[0] for process in together]

    assert (said, tenants.reasons(1)) == (["bad=0\n"] * PROCESSES, {})


def rested(tenants: Tenants, attack: Path) -> None:
    """As CUDA restores a container with two processes: the first one waits until the second one is restored."""
    tenants.add(1, memory=1 << 30)
    first = tenants.start(attack, "rests", tenant=1)
    assert first.stdout
    assert first.stdout.readline() == "made=0\n"

    second = tenants.start(attack, "starts", "3", tenant=1)
    said = second.communicate("\n\n", timeout=60)[0]

    assert (said, tenants.reasons(1)) == ("begun=1\nbad=0\n", {})


def reset(tenants: Tenants, attack: Path) -> None:
    """Attack: a channel that is reset could run on where it has to stay off."""
    memory = 1 << 30
    tenants.add(1, memory=memory)
    with Spoken(tenants.command(attack, "resets"), tenants.environment(), seconds=30) as program:
        assert (program.line(), program.ask("")) == ("bad=0", "status=0")
        tenants.update(1, memory=memory, paused=True)
        program.tell("")
        assert select.select([program.process.stdout], [], [], 0.5)[0] == []
        tenants.update(1, memory=memory)
        assert program.line() == "status=0"
        tenants.update(1, memory=memory, paused=True)
        assert program.ask("") == f"status={0x10000 + errno.EAGAIN}"


def test_a_channel_is_reset_while_its_tenant_may_compute_alone(tmp_path: Path) -> None:
    place = prepare(tmp_path)
    build_static(SOURCES[0], place / "attack", *map(str, SOURCES[1:]))
    guarded(place, lambda tenants: reset(tenants, place / "attack"))


def test_a_group_is_started_while_another_process_rests_after_such_a_call(tmp_path: Path) -> None:
    place = prepare(tmp_path)
    build_static(SOURCES[0], place / "attack", *map(str, SOURCES[1:]))
    guarded(place, lambda tenants: rested(tenants, place / "attack"))


def test_groups_of_processes_that_start_together_are_all_started(tmp_path: Path) -> None:
    place = prepare(tmp_path)
    build_static(SOURCES[0], place / "attack", *map(str, SOURCES[1:]))
    guarded(place, lambda tenants: started(tenants, place / "attack"))
