"""Memory that is not simply taken and freed: shared, pooled, captured, mapped into arrays, freed wrongly.

What is charged is held against the driver's own count where it has one, and the driver's answers against those that a
process without the library gets.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu.enforce.conftest import Shares, Starts
from tests.support.share_kinds import GIB, MIB, OUT_OF_MEMORY
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system]

LIMIT = 4 * GIB
#: What the driver may round up, or take for a moment beside a piece of hundreds of MiB.
CLOSE = 4 * MIB
#: What a process has beside it that no share counts (page tables), which comes and goes with it.
NEAR = 48 * MIB
#: Of graphs.c and pools.c.
GRAPH, POOL = 256 * MIB, 512 * MIB

Said = dict[str, int]
Both = Callable[..., tuple[Said, Said]]


def _charged(said: Said) -> Said:
    """Where -> bytes that are charged there and were not at the start."""
    frees = {name.removeprefix("free_"): value for name, value in said.items() if name.startswith("free_")}
    return {where: frees["start"] - value for where, value in frees.items() if where != "start"}


def _answers(said: Said) -> Said:
    """What the driver said and counted itself, which no share may change."""
    return {name: value for name, value in said.items() if name.startswith(("status_", "reserved_", "byte"))}


def _text(charged: Said) -> str:
    return ", ".join(f"{where} {value / MIB:.1f}" for where, value in charged.items()) + " MiB"


def _as_reserved(said: Said) -> bool:
    """Is as much charged everywhere as the driver says that the pool, or all graphs, have?"""
    before = said.get("reserved_start", 0)
    return all(
        abs(charged - (said[f"reserved_{where}"] - before)) <= CLOSE
        for where, charged in _charged(said).items()
        if f"reserved_{where}" in said
    )


def _close(charged: Said, real: Said) -> bool:
    """Is as much charged everywhere as a GPU without other processes had less of, in the run without the library?"""
    return charged.keys() == real.keys() and all(abs(charged[where] - real[where]) <= NEAR for where in charged)


@pytest.fixture
def both(share: Shares, start: Starts) -> Both:
    """Runs a program without the library, then under a share of LIMIT; what it said each time. No charge stays."""

    def run(*command: object) -> tuple[Said, Said]:
        held = share(memory=LIMIT)
        with start(*command) as program:
            bare = program.until_end()
        with start(*command, share=held) as program:
            said = program.until_end()
        assert held.used() == 0
        return bare, said

    return run


def test_memory_exported_by_a_fabric_handle_is_the_exporters(both: Both, table: Table) -> None:
    bare, said = both("references", "fabric")
    refused = said["status_create"] or said["status_export"]

    got = f"this machine's driver refuses such handles: {refused}" if refused else _text(_charged(said))
    taken = said["free_start"] - said["free_before_import"] if not refused else 0
    good = _answers(said) == _answers(bare) and (
        refused != 0 or (abs(taken - GRAPH) <= CLOSE and said["free_imported"] == said["free_before_import"])
    )
    table.add("exported by a fabric handle and imported by another process", goal="charged once", got=got, good=good)
    assert _answers(said) == _answers(bare)
    assert good
    assert said["free_end"] >= said["free_start"]


def test_a_pool_is_charged_with_what_it_keeps(both: Both, table: Table) -> None:
    bare, said = both("pools", "threshold")
    charged = _charged(said)

    exact = _as_reserved(said) and _answers(said) == _answers(bare)
    good = exact and charged["kept"] == charged["taken"] == charged["reused"] >= POOL and abs(charged["end"]) <= CLOSE
    # What is let go at the last point is the driver's affair: as much as without the library.
    good = good and POOL // 2 <= charged["trimmed"] < charged["taken"]
    table.add(
        "pool: 512 MiB taken, given back (release threshold: none), taken, trimmed to 256, threshold 0",
        goal="as the pool's RESERVED_MEM_CURRENT",
        got=_text(charged),
        good=good,
    )
    assert _answers(said) == _answers(bare)
    assert good, said


def test_a_pool_that_was_destroyed_is_charged_until_its_memory_goes(both: Both, table: Table) -> None:
    bare, said = both("pools", "destroyed")
    charged = _charged(said)

    good = charged["destroyed"] == charged["taken"] >= POOL and abs(charged["given"]) <= CLOSE
    table.add(
        "pool destroyed with 512 MiB in use, then given back", goal="charged until then", got=_text(charged), good=good
    )
    assert _answers(said) == _answers(bare)
    assert good, said
    assert charged["end"] == charged["given"]


def test_an_exported_pool_is_its_owners(both: Both, table: Table) -> None:
    bare, said = both("pools", "exported")
    charged = _charged(said)

    real = _charged(bare)
    good = charged["taken"] >= POOL and _close(charged, real)
    good = good and all(abs(charged[where] - charged["taken"]) <= CLOSE for where in ("imported", "returned"))
    table.add(
        "pool of 512 MiB exported; imported with a pointer, and let go, by another process",
        goal="charged once, to its owner; as the driver itself has less",
        got=_text(charged),
        base=_text(real),
        good=good,
    )
    assert (said["byte"], said["status_alloc"] != 0) == (3, True), "an imported pool gives no memory"
    assert _answers(said) == _answers(bare)
    assert good, said


@pytest.mark.parametrize(
    ("scene", "what"),
    [
        ("captured", "a captured allocation and free, launched 3 times, destroyed, trimmed"),
        ("freed-on-launch", "a captured allocation, freed by every launch: 21 launches, destroyed, trimmed"),
        ("several", "two captured graphs in turn, 22 launches, destroyed, trimmed"),
    ],
)
def test_captured_graphs_are_charged_with_what_they_have(both: Both, table: Table, scene: str, what: str) -> None:
    bare, said = both("graphs", scene)
    charged = _charged(said)

    good = _as_reserved(said) and charged["launched"] >= GRAPH and abs(charged["trimmed"]) <= CLOSE
    good = good and charged.get("again", charged["launched"]) == charged["launched"]
    table.add(
        what,
        goal="as the driver's RESERVED_MEM_CURRENT of graphs; the same after 20 launches more",
        got=_text(charged),
        good=good,
    )
    assert _answers(said) == _answers(bare)
    assert good, said
    if scene == "several":
        assert said["status_anew"] == 0, "the graph can be instantiated again when its first instance is gone"


def test_a_captured_graph_beyond_the_limit_is_refused(share: Shares, start: Starts, table: Table) -> None:
    """As on a GPU that is nearly full: libcuda keeps what it took of the graph before it was refused."""
    held = share(memory=LIMIT)
    with start("graphs", "refused", 2 * LIMIT, 0, share=held) as program:
        said = program.until_end()
    with start("graphs", "refused", 2 * LIMIT, said["free_start"]) as program:
        bare = program.until_end()

    statuses = {name: value for name, value in _answers(said).items() if name.startswith("status_")}
    good = statuses == {name: bare.get(name) for name in statuses} and OUT_OF_MEMORY in statuses.values()
    good = good and set(statuses.values()) <= {0, OUT_OF_MEMORY}
    table.add(
        f"a captured allocation of {2 * LIMIT // GIB} GiB under {LIMIT // GIB}",
        goal="CUDA_ERROR_OUT_OF_MEMORY, and all answers as on a GPU with as little left",
        got=" ".join(f"{name.removeprefix('status_')} {value}" for name, value in statuses.items()),
        base=" ".join(str(bare.get(name)) for name in statuses),
        good=good,
    )
    assert good, (said, bare)
    assert held.used() == 0


@pytest.mark.parametrize("scene", ["sparse", "deferred"])
def test_memory_mapped_into_an_array_is_charged_until_it_is_unmapped(both: Both, table: Table, scene: str) -> None:
    bare, said = both("sparse", scene)
    assert _answers(said) == _answers(bare)
    assert said["supported"] == bare["supported"]
    if not said["supported"]:
        table.add(f"{scene} array", goal="charged while mapped", got="not supported by this GPU")
        return
    charged, real = _charged(said), _charged(bare)

    # libcuda frees the handle in the middle of it, and UVM keeps the memory until it is unmapped.
    good = charged["mapped"] >= said["bytes"] and charged["end"] == 0 and _close(charged, real)
    table.add(
        f"{scene} array of 1 GiB: memory made, mapped into it, its handle released, unmapped",
        goal="charged while the driver itself has less",
        got=_text(charged),
        base=_text(real),
        good=good,
    )
    assert good, (said, bare)


@pytest.mark.parametrize("scene", ["frees", "releases", "importer"])
def test_a_wrong_free_has_the_drivers_answer_and_changes_no_count(both: Both, table: Table, scene: str) -> None:
    bare, said = both("foreign", scene)
    charged, answers = _charged(said), _answers(said)

    good = answers == _answers(bare) and charged["taken"] > 0
    if scene == "importer":
        good = good and charged["freed_there"] == charged["taken"] and charged["freed"] == 0
    else:
        good = good and charged["end"] == 0 and (answers["status_first"], bool(answers["status_twice"])) == (0, True)
    if scene == "frees":
        good = good and charged["twice"] == charged["wrong"] == charged["taken"] // 2
    table.add(
        f"wrong frees ({scene}): {len(answers)} answers",
        goal="as without the library; only what was right is given back",
        got=" ".join(f"{name.removeprefix('status_')} {value}" for name, value in answers.items()),
        good=good,
    )
    assert answers == _answers(bare)
    assert good, said


def test_external_memory_is_charged_once(both: Both, table: Table) -> None:
    """The door for Vulkan's memory, with a descriptor of CUDA's own: no Vulkan is needed for it."""
    bare, said = both("foreign", "external")
    charged, imported = _charged(said), said["status_import"] == 0

    good = _answers(said) == _answers(bare) and charged["end"] == 0
    if imported:
        good = good and charged["mapped"] == charged["taken"]
    table.add(
        "cuImportExternalMemory of an exported descriptor, mapped, freed, destroyed",
        goal="charged once; answers as without the library",
        got=_text(charged) if imported else f"this driver takes no such descriptor: {said['status_import']}",
        good=good,
    )
    assert _answers(said) == _answers(bare)
    assert good, said
