"""When the measurements of costs say that a goal is missed."""

from __future__ import annotations

import pytest

from tests.support.costs import Costs


@pytest.mark.parametrize(
    ("held", "free", "again", "goal", "missed"),
    [
        pytest.param([105.0], [100.0], [], 1.05, False, id="met"),
        pytest.param([106.9], [100.0], [], 1.05, False, id="by-less-than-what-is-always-allowed"),
        pytest.param([107.1], [100.0], [], 1.05, True, id="by-more"),
        pytest.param([114.0], [95.0], [105.0], 1.05, False, id="by-less-than-two-equal-ones-differ"),
        pytest.param([117.0], [95.0], [105.0], 1.05, True, id="by-more-than-they-differ"),
        pytest.param([117.0], [105.0], [95.0], 1.05, True, id="the-second-one-faster"),
        pytest.param([1.0, 100.0, 900.0], [100.0], [], 1.0, False, id="of-the-medians"),
        pytest.param([900.0], [100.0], [], None, False, id="no-goal"),
    ],
)
def test_a_goal_is_missed_by_more_than_chance(
    held: list[float], free: list[float], again: list[float], goal: float | None, missed: bool
) -> None:
    assert Costs(held, free, again).misses(goal) is missed


def test_each_is_asked_as_often_and_none_always_first() -> None:
    asked = list[int]()
    cost = Costs()

    def source(place: int) -> float:
        asked.append(place)
        return float(place)

    cost.take_from([lambda place=place: source(place) for place in range(3)], 6)  # type: ignore[misc]
    assert (cost.held, cost.free, cost.again) == ([0.0] * 6, [1.0] * 6, [2.0] * 6)
    rounds = [asked[index : index + 3] for index in range(0, 18, 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds)
    assert {one[0] for one in rounds} == {one[-1] for one in rounds} == {0, 1, 2}
