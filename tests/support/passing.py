"""Open files of the driver that a container passes to another one: ``give`` and ``take`` of tests/system/attacks, and
``receive`` of a container without a GPU.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.agentbed import Held
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.guarded import GuardedTenant
from tests.support.runtimes import Result
from tests.support.spoken import Spoken
from tests.support.wrapped import Wrapped

#: What each use of another container's file comes to, and then one of the container's own.
_REFUSED = 0x10000 + errno.EACCES
REFUSED = dict.fromkeys(("client", "reopened", "memory", "channel", "freed"), _REFUSED) | {
    "mapped": errno.EACCES,
    "own": 0,
}

#: What the one that gives says first.
GIVEN = ["group=0", "memory=0", "ready=1"]
#: What is refused without a GPU: the same but for mappings, a client of its own, other ways to request on any file.
_OTHER_WAYS = ("type", "wrapped", "uvm", "uvm-map", *(("32-bit",) if os.uname().machine == "x86_64" else ()))
_WITHOUT_GPU = {
    **{name: value for name, value in REFUSED.items() if value == _REFUSED},
    "own": _REFUSED,
    "pieces": 0,
    **dict.fromkeys(_OTHER_WAYS, errno.EACCES),
}
LINES = len(_WITHOUT_GPU) + 2


def volume_of(bed: Bed) -> dict[str, Any]:
    """A mount that both containers have."""
    place = bed.directory("volume")
    return {"destination": "/volume", "source": str(place), "type": "bind", "options": ["rbind", "rw"]}


def giver(wrapped: Wrapped, tree: Path, volume: Mapping[str, Any], share: str) -> Held:
    """A guarded container. tree: has ``attack`` in its path."""
    command = ["attack", "give", "/volume/socket"]
    return Held(wrapped, Container(tree, command, gpu_env("all"), annotations={"nvc.share": share}, mounts=[volume]))


def sidecar(tree: Path, volume: Mapping[str, Any]) -> Container:
    """One without a GPU."""
    return Container(tree, ["attack", "receive", "/volume/socket"], mounts=[volume])


def got(result: Result) -> dict[str, int]:
    """What the other one says."""
    assert result.code == 0, result.text
    return read(result.out.split())


def read(lines: Iterable[str]) -> dict[str, int]:
    return {name: int(value) for name, _, value in (line.partition("=") for line in lines)}


def is_refused(found: Mapping[str, int]) -> bool:
    """Whether it got nothing, and no other request was refused."""
    # Mappings are not: docs/internals/guard.md, Limits.
    return {name: value for name, value in found.items() if name != "mapped"} == {**_WITHOUT_GPU, "plain": errno.ENOTTY}


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
