"""oversubscribe=on: memory of a share is managed memory, which can lie in the host's, and the limit still holds.

Within what the GPU has free: nothing is driven out of it by need, the program itself sends a piece to the host.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.enforce.conftest import GUARD, LIBRARY, Shares, Starts
from tests.support.gpuhost import smi
from tests.support.guarded import Guarding
from tests.support.share_kinds import OUT_OF_MEMORY
from tests.support.share_table import Table

pytestmark = [pytest.mark.gpu, pytest.mark.system, pytest.mark.timeout(60)]

MIB, GIB = 1 << 20, 1 << 30
PIECE = GIB


def _host_free() -> int:
    """Bytes of the host's memory. The GPU's do not say it: UVM keeps a piece's blocks there when it has moved."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


@pytest.mark.parametrize("enforcer", [LIBRARY, GUARD])
def test_memory_goes_to_the_host_and_comes_back(
    share: Shares,
    guarding: Guarding,
    start: Starts,
    table: Table,
    enforcer: str,
) -> None:
    """A limit above what the GPU has, and one that is reached with what is free."""
    card = int(smi("--query-gpu=memory.total", "--format=csv,noheader,nounits").splitlines()[0]) * MIB
    limit, above = 5 * GIB, card + 8 * GIB
    found = {}
    for memory in (limit, above):
        fields: dict[str, Any] = {"memory": memory, "oversubscribe": True}
        # Under the guard a container has the library too: what CUDA's functions do changes in the process only.
        under = {"tenant": guarding.tenant(**fields)} if enforcer == GUARD else {}
        with start("spill", PIECE, share=share(**fields), **under) as program:
            said = program.until("here")
            places = [_host_free()]
            for word in ("there", "back"):
                program.tell("")
                said |= program.until(word)
                places.append(_host_free())
            if memory == limit:  # the other one would fill the card
                program.tell("")
                said |= program.until("end")
            found[memory] = said, places
    (said, places), (larger, _) = found[limit], found[above]
    moved = places[0] - places[1]
    good = (
        said["managed"] == 1
        and moved >= PIECE * 0.9
        and (said["wrong_there"], said["wrong_back"], said["refused"]) == (0, 0, OUT_OF_MEMORY)
        and limit - GIB - PIECE < (said["pieces"] + 1) * PIECE <= limit
        and larger["managed"] == 1
    )
    table.add(
        f"oversubscribe=on, {enforcer}: 1 GiB to the host and back; mem={limit // GIB}Gi full; mem above the card",
        goal="the host has 1 GiB less when it is there, nothing is lost, the limit holds, memory is managed",
        got=f"{moved / MIB:.0f} MiB, {said['wrong_there']} + {said['wrong_back']} bytes wrong, "
        f"{said['pieces'] + 1} pieces, then {said['refused']}; total {larger['total'] / GIB:.1f} GiB",
        good=good,
    )
    assert good, found
