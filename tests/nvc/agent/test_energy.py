"""Energy of a GPU goes to tenants by the time in which they computed; nothing is counted twice or negative."""

from __future__ import annotations

import random

from nvc.agent.energy import DividedEnergy

S = 10**9


def test_parts_and_idle_are_all_of_the_counter() -> None:
    divided, now, counter, computed = DividedEnergy(), 100.0, 5_000_000, {1: 0, 2: 0}
    divided.update(now, counter, computed)
    assert (divided.is_known, divided.total) == (False, 0.0)
    rng = random.Random(25)
    for _ in range(200):
        seconds, part = rng.uniform(1, 10), rng.uniform(0, 1)
        now, counter = now + seconds, counter + int(seconds * 300_000)
        computed = {1: computed[1] + int(seconds * part * S * 2 / 3), 2: computed[2] + int(seconds * part * S / 3)}
        divided.update(now, counter, computed)
    first, second, idle = divided.energy(1), divided.energy(2), 300 * (now - 100) - sum(computed.values()) / S * 300
    assert abs(divided.total - (counter - 5_000_000) / 1000) < 0.01
    assert abs(first + second + idle - divided.total) < 1
    assert abs(first / second - 2) < 0.001, "it computed twice as long"


def test_samples_that_come_late_are_charged_to_the_next_interval() -> None:
    divided = DividedEnergy()
    divided.update(0, 0, {1: 0})
    divided.update(5, 5000, {1: 4 * S})
    divided.update(10, 10_000, {1: 10 * S})
    assert divided.energy(1) == 9.0, "no more than the interval has"
    divided.update(15, 15_000, {1: 10 * S})
    assert divided.energy(1) == 10.0


def test_a_counter_that_begins_again_is_a_first_reading() -> None:
    divided = DividedEnergy()
    divided.update(0, 900_000, {1: 0})
    divided.update(5, 905_000, {1: 5 * S})
    divided.update(10, 2000, {1: 10 * S})  # the driver was loaded again
    assert (divided.energy(1), divided.total) == (5.0, 5.0)
    divided.update(15, 4000, {1: 10 * S})
    assert (divided.energy(1), divided.total) == (5.0, 7.0), "what was computed before is not charged later"


def test_computed_time_that_begins_again_takes_nothing_away() -> None:
    divided = DividedEnergy()
    divided.update(0, 0, {1: 50 * S})
    divided.update(5, 5000, {1: 1 * S})
    divided.update(10, 10_000, {1: 2 * S})
    assert divided.energy(1) == 1.0


def test_while_it_rests_nothing_is_counted() -> None:
    divided = DividedEnergy()
    divided.update(0, 0, {})
    divided.update(5, 5000, {1: 5 * S})
    divided.rest()
    divided.update(3600, 900_000, {2: 1 * S})
    divided.update(3605, 905_000, {2: 6 * S})
    assert (divided.energy(1), divided.energy(2), divided.total) == (5.0, 5.0, 10.0)


def test_the_part_of_a_tenant_that_is_over_stays_in_the_sum() -> None:
    divided = DividedEnergy()
    divided.update(0, 0, {1: 0})
    divided.update(5, 5000, {1: 5 * S})
    divided.forget(1)
    divided.update(10, 10_000, {2: 5 * S})
    assert (divided.energy(1), divided.energy(2), divided.total) == (0.0, 5.0, 10.0)
