"""How a GPU's memory is divided among tenants with a range: what holds at every moment, and which gets what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.agent.dividing import RESERVE, STEP, Claim, divide, moves, shortage, victims

GIB = 1 << 30
CAPACITY = 80 * GIB


@st.composite
def claims(draw: st.DrawFn) -> tuple[Claim, ...]:
    """Tenants whose limits fit, as admission and earlier moves leave them."""
    left, found = CAPACITY, []
    for number in range(draw(st.integers(1, 5))):
        request = draw(st.integers(1, 20)) * GIB
        if request > left:
            break
        most = request + draw(st.integers(0, 60)) * GIB
        limit = min(most, request + draw(st.integers(0, max(0, left - request))))
        used = draw(st.integers(0, limit))
        left -= limit
        wants, sleeps = draw(st.booleans()), draw(st.booleans())
        found.append(Claim(number, request, most, limit, used, wants, sleeps=sleeps))
    return tuple(found)


def taken(found: tuple[Claim, ...]) -> int:
    """What is in use once all allocate what they may."""
    return sum(max(one.limit, one.used, one.request) for one in found)


def moved(found: tuple[Claim, ...], limits: dict[int, int]) -> tuple[Claim, ...]:
    return tuple(one.replace(limit=limits.get(one.number, one.limit)) for one in found)


@given(claims(), st.data())
def test_an_agent_that_ends_anywhere_leaves_every_request(found: tuple[Claim, ...], data: st.DataObject) -> None:
    """Lowered first; and what a tenant takes in between is seen before another's limit is raised."""
    assert taken(found) <= CAPACITY
    for _ in range(3):
        lowered, raised = moves(CAPACITY, found)
        for number, limit in (lowered or raised).items():
            found = moved(found, {number: limit})
            assert taken(found) <= CAPACITY
            if data.draw(st.booleans()):  # a tenant allocates meanwhile, as its limit allows
                one = data.draw(st.sampled_from(found))
                grown = one.replace(used=max(one.used, one.limit))
                found = tuple(grown if other.number == one.number else other for other in found)
                assert taken(found) <= CAPACITY
        if not lowered:
            return


@given(claims(), st.integers(0, 100 * GIB))
def test_limits_stay_in_their_ranges(found: tuple[Claim, ...], capacity: int) -> None:
    """Whatever others of the machine take from it: a GPU with less than the tenants have raises none."""
    lowered, raised = moves(capacity, found)
    for one in found:
        limit = {**lowered, **raised}.get(one.number, one.limit)
        assert one.request <= limit <= one.most
        assert limit >= min(one.used, one.most)
    if taken(moved(found, {**lowered, **raised})) > capacity:
        assert all(raised.get(one.number, 0) <= one.used for one in found)


def ranged(number: int, used: int = 0, limit: int = 8, **more: bool) -> Claim:
    return Claim(number, 8 * GIB, 40 * GIB, limit * GIB, used * GIB, **more)


def test_memory_that_no_request_needs_is_for_those_that_want_it() -> None:
    greedy, idle = ranged(1, used=8, wants=True), ranged(2)
    plain = Claim(3, 40 * GIB, 40 * GIB, 40 * GIB, 0)
    limits = divide(CAPACITY, (greedy, idle, plain))
    assert limits[2] <= 8 * GIB + 2 * RESERVE
    assert limits[1] >= 31 * GIB


def test_without_want_it_is_divided_equally() -> None:
    limits = divide(CAPACITY, (ranged(1), ranged(2), ranged(3), Claim(4, 20 * GIB, 20 * GIB, 0, 0)))
    assert max(limits.values()) - min(limits.values()) <= 2 << 20
    assert 8 * GIB < limits[1] < 20 * GIB


def test_one_alone_gets_the_most() -> None:
    assert moves(CAPACITY, (ranged(1),)) == ({}, {1: 40 * GIB})


def test_small_changes_move_nothing() -> None:
    found = (Claim(1, 8 * GIB, 60 * GIB, 79 * GIB // 2, 9 * GIB), Claim(2, 8 * GIB, 60 * GIB, 79 * GIB // 2, 9 * GIB))
    assert moves(CAPACITY, found) == ({}, {})
    more = found[1].replace(used=9 * GIB + STEP // 4)
    assert moves(CAPACITY, (found[0], more)) == ({}, {})


def test_a_tenant_that_sleeps_keeps_its_request_and_no_more() -> None:
    sleeps = ranged(1, limit=40, sleeps=True)
    lowered, _ = moves(CAPACITY, (sleeps, ranged(2, used=39, limit=40, wants=True)))
    assert lowered == {} or lowered[1] == 8 * GIB
    assert divide(CAPACITY, (sleeps, ranged(2)))[1] == 8 * GIB


def test_what_comes_back_is_kept_free_for_it() -> None:
    back = ranged(1, sleeps=False).replace(returns=30 * GIB)
    other = ranged(2, used=10, limit=40, wants=True)
    assert shortage(CAPACITY, (back, other)) < 0
    lowered, raised = moves(CAPACITY, (back, other))
    assert lowered or raised
    assert moves(CAPACITY, moved((back, other), lowered))[1][1] >= 30 * GIB


@pytest.mark.parametrize(("used", "lacks"), [(8, False), (40, False), (41, True)])
def test_a_request_lacks_what_another_has_above_its_own(used: int, lacks: bool) -> None:
    found = (Claim(1, 8 * GIB, 60 * GIB, 60 * GIB, used * GIB), Claim(2, 40 * GIB, 40 * GIB, 40 * GIB, 0))
    assert (shortage(CAPACITY, found) > 0) is lacks


def test_the_lowest_priority_is_suspended_first_and_none_within_its_request() -> None:
    found = (
        Claim(1, 8 * GIB, 40 * GIB, 40 * GIB, 30 * GIB, priority="high"),
        Claim(2, 8 * GIB, 40 * GIB, 40 * GIB, 12 * GIB),
        Claim(3, 8 * GIB, 40 * GIB, 40 * GIB, 20 * GIB),
        Claim(4, 8 * GIB, 40 * GIB, 40 * GIB, 8 * GIB, priority="low"),
        Claim(5, 40 * GIB, 40 * GIB, 40 * GIB, 40 * GIB, priority="low"),
        Claim(6, 8 * GIB, 40 * GIB, 40 * GIB, 30 * GIB, priority="low", sleeps=True),
    )
    assert [one.number for one in victims(found)] == [3, 2, 1]


def test_an_idle_tenant_is_suspended_before_all_others_and_lends_its_request() -> None:
    idle = Claim(1, 40 * GIB, 40 * GIB, 40 * GIB, 30 * GIB, priority="high", is_idle=True)
    above = Claim(2, 8 * GIB, 40 * GIB, 40 * GIB, 30 * GIB, priority="low")
    empty = Claim(3, 40 * GIB, 40 * GIB, 40 * GIB, 0, is_idle=True)
    assert [one.number for one in victims((above, idle, empty))] == [1, 2]
    asleep = idle.replace(used=0, sleeps=True, lends=True)
    assert shortage(CAPACITY, (asleep, above, empty)) == shortage(CAPACITY, (above, empty))
    wakes = asleep.replace(sleeps=False, lends=False, returns=30 * GIB)
    assert shortage(CAPACITY, (wakes, above, empty)) == shortage(CAPACITY, (idle, above, empty))
