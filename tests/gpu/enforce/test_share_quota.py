"""The memory of a share: exact for every way to allocate, for many processes, for as long as they like."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu.enforce.conftest import Shares, Starts
from tests.support.share_kinds import GIB, MIB, OUT_OF_MEMORY, UNCOUNTED
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]


@pytest.mark.parametrize("kind", ["malloc", "create", "managed"])
def test_all_that_is_free_can_be_had_and_a_granule_more_cannot(
    share: Shares, start: Starts, table: Table, kind: str
) -> None:
    held = share(memory=10 * GIB)

    with start("quota", kind, "exact", share=held) as program:
        said = program.until("done")

    good = (said["status_all"], said["status_more"], said["status_again"]) == (0, OUT_OF_MEMORY, 0)
    table.add(
        f"{kind}: all that is free in one piece, then 2 MiB more",
        goal="granted, refused",
        got=f"{said['asked'] / MIB:.0f} MiB: {said['status_all']}, 2 MiB more: {said['status_more']}",
        good=good,
    )
    assert good
    assert said["free_full"] < 2 * MIB
    assert said["free_end"] == said["free_start"]


@pytest.mark.parametrize("kind", ["host", "registered"])
def test_memory_of_the_host_is_not_charged(share: Shares, start: Starts, table: Table, kind: str) -> None:
    held = share(memory=GIB)

    with start("quota", kind, "fill", 2 * GIB, share=held) as program:
        full = program.until("full")
        program.tell("")
        program.until("done")

    table.add(
        f"{kind}: under a limit of 1 GiB",
        goal="2048 MiB, nothing charged",
        got=f"{full['taken'] / MIB:.0f} MiB, {(full['free_start'] - full['free_full']) / MIB:.1f} MiB charged",
        good=full["status"] == 0 and full["free_full"] == full["free_start"],
    )
    assert (full["status"], full["taken"]) == (0, 2 * GIB)
    assert full["free_full"] == full["free_start"]


@pytest.mark.parametrize(
    ("kind", "count", "size"),
    [
        ("malloc", 10000, 4 * MIB),
        ("malloc", 10000, 4096),
        ("create", 10000, 2 * MIB),
        ("async", 10000, 4 * MIB),
        ("array", 10000, 4 * MIB),
        ("managed", 10000, 4 * MIB),
        ("graph", 1000, 32 * MIB),
    ],
)
def test_ten_thousand_loops_do_not_drift(
    share: Shares, start: Starts, table: Table, kind: str, count: int, size: int
) -> None:
    held = share(memory=2 * GIB)

    with start("quota", kind, "loop", count, size, share=held) as program:
        said = program.until("done")
        used = held.used()

    drift = said["free_start"] - said["free_end"]
    table.add(
        f"{kind}: {count} times {size >> 10} KiB taken and given back",
        goal="free as before",
        got=f"{drift} bytes less, {said['nanoseconds'] / 1000:.1f} µs each",
        good=drift == 0,
    )
    assert drift == 0
    assert used == said["total"] - said["free_end"]


def test_mapped_memory_is_charged_until_its_last_reference_goes(share: Shares, start: Starts, table: Table) -> None:
    with start("references", "mapped", share=share(memory=4 * GIB)) as program:
        said = program.until_end()

    piece = 256 * MIB
    gone = {name: (said["free_start"] - value) // piece for name, value in said.items() if name.startswith("free_")}
    expected = {"free_start": 0, "free_mapped_twice": 1, "free_released": 1, "free_unmapped_once": 1, "free_end": 0}
    table.add(
        "cuMemCreate, mapped twice, released, unmapped, unmapped",
        goal="charged until the second unmap",
        got=" ".join(str(gone[name]) for name in expected),
        good=gone == expected,
    )
    assert gone == expected
    assert said["free_end"] == said["free_start"]


def test_exported_memory_is_the_exporters(share: Shares, start: Starts, table: Table) -> None:
    held = share(memory=4 * GIB)
    with start("references", "exported", share=held) as program:
        said = program.until_end()

    taken = said["free_start"] - said["free_before_import"]
    good = taken == 256 * MIB and said["free_imported"] == said["free_descriptor_left"] == said["free_before_import"]
    table.add(
        "exported by descriptor and imported by another process",
        goal="charged once, while a handle or the descriptor is there",
        got=f"{taken / MIB:.0f} MiB; imported: {(said['free_start'] - said['free_imported']) / MIB:.0f} MiB",
        good=good,
    )
    assert good
    assert said["free_end"] >= said["free_start"]
    assert held.used() == 0


def test_memory_opened_through_ipc_is_its_owners(share: Shares, start: Starts, table: Table) -> None:
    held = share(memory=4 * GIB)
    with start("references", "ipc", share=held) as program:
        said = program.until_end()

    good = said["free_before_open"] == said["free_opened"] == said["free_closed"]
    table.add(
        "cuIpcOpenMemHandle in another process",
        goal="charged once",
        got=f"{(said['free_start'] - said['free_opened']) / MIB:.0f} MiB of 256 MiB",
        good=good,
    )
    assert good
    assert said["free_end"] >= said["free_start"]
    assert held.used() == 0


def test_eight_processes_race_to_the_limit(
    share: Shares, start: Starts, table: Table, driver_usage: Callable[[], int]
) -> None:
    limit, piece, count = 12 * GIB, 64 * MIB, 8
    held = share(memory=limit)
    before = driver_usage()

    with start("race", count, piece, 3, share=held, seconds=120) as program:
        full = program.until("full")
        used, real = held.used(), driver_usage() - before
        program.tell("")
        said = program.until_end()

    # What the processes have beside their pieces was there before the race: all of the rest is theirs, and no more.
    room = full["free_start"]
    good = used <= limit and full["free_full"] < piece and said["most"] <= room
    table.add(
        f"{count} processes race for pieces of {piece >> 20} MiB, then take and give for 3 s",
        goal="never above the limit, no refusal below it",
        got=f"{full['free_full'] / MIB:.0f} MiB left, most {said['most'] / MIB:.0f} of {room / MIB:.0f} MiB, "
        f"{said['grants']} grants, {said['refusals']} refusals; "
        f"nvidia-smi +{real} MiB",
        good=good,
    )
    assert good
    assert said["others"] == 0
    assert real <= limit // MIB + count * UNCOUNTED
    assert held.used() == 0


def test_a_limit_is_changed_while_the_program_runs(share: Shares, start: Starts, table: Table) -> None:
    held = share(memory=4 * GIB)

    with start("quota", "malloc", "fill", 8 * GIB, share=held) as program:
        program.until("full")
        held.set(memory=6 * GIB)
        with start("quota", "malloc", "fill", 8 * GIB, share=held) as second:
            more = second.until("full")
            held.set(memory=2 * GIB)
            with start("seen", MIB, share=held) as third:
                refused = third.fails_with("OUT_OF_MEMORY")
            second.tell("")
            less = second.until("done")

    good = more["total"] == 6 * GIB and more["taken"] > GIB and less["free_end"] == 0 and refused
    table.add(
        "limit 4 GiB, full; raised to 6 GiB, full; lowered to 2 GiB with 6 GiB used",
        goal="more at once; then nothing more, free 0, nothing breaks",
        got=f"{more['taken'] / MIB:.0f} MiB more; free {less['free_end']}; another process refused: {refused}",
        good=good,
    )
    assert good
    assert less["status_again"] == OUT_OF_MEMORY
