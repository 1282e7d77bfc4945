"""Open files of the driver that a container passes to another one: ``give`` and ``take`` of tests/system/attacks."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from tests.support.guarded import GuardedTenant
from tests.support.spoken import Spoken

#: What each use of another container's file comes to, and then one of the container's own.
_REFUSED = 0x10000 + errno.EACCES
REFUSED = dict.fromkeys(("client", "reopened", "memory", "channel", "freed"), _REFUSED) | {
    "mapped": errno.EACCES,
    "own": 0,
}


def passed(
    start: Callable[..., Spoken], place: Path, giver: GuardedTenant, taker: GuardedTenant
) -> tuple[dict[str, int], dict[str, int]]:
    """What the taker got by each use, and what the giver's own calls came to. place: an empty directory."""

    def said(program: Spoken, count: int) -> dict[str, int]:
        words = (program.line().partition("=") for _ in range(count))
        return {name: int(value) for name, _, value in words}

    with start(giver, "give", str(place / "socket")) as one:
        own = said(one, 3)
        with start(taker, "take", str(place / "socket")) as other:
            got = said(other, len(REFUSED))
        one.tell("")
        own |= said(one, 1)
    return got, own
