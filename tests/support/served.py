"""A simulated machine of a test's own whose nodes are served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nvc.sim import MACHINE_FILE
from tests.support import leftovers
from tests.support.bed import Bed


@contextmanager
def served_machine(bed: Bed, *lines: str) -> Iterator[str]:
    """The name of one whose nodes are served until the end, when nothing of the manager is left.

    lines: more of its description (native/sim/machine.h), of the machine as a whole.
    """
    name = bed.new_machine("h200")
    place = str(bed.machine(name))
    description = bed.machine(name) / MACHINE_FILE
    description.write_text(description.read_text().replace("\nnodes=", "\n".join(("", *lines, "nodes="))))
    bed.call(bed.commands.nvc, "sim", "start", place, check=True)
    try:
        yield name
    finally:
        bed.call(bed.commands.nvc, "sim", "stop", place, check=True)
    assert leftovers.until(lambda: not leftovers.processes(bed.token), seconds=30), leftovers.processes(bed.token)
