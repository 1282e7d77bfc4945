"""Measurements of time: a busy machine starves the programs that are measured, now and then, whatever we do.

One good result of a few is enough. What is measured must be such that it is never good where the thing itself is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def good(measure: Callable[[], T], holds: Callable[[T], object], why: str = "", *, seconds: float = 30) -> T:
    """The first result for which something holds; none is begun after ``seconds``. Raises AssertionError with all."""
    results: list[T] = []
    end = time.monotonic() + seconds
    while not results or time.monotonic() < end:
        results.append(measure())
        if holds(results[-1]):
            return results[-1]
    raise AssertionError(f"{why or 'none is good'}: {results}")
