"""What an image, a neighbour or a local user can make a process of ours take, at most: every number once.

docs/reference/budgets.md shows ``BUDGETS`` as a table, and tests/contract/test_budgets_doc.py holds it to this module;
tests/nvc/test_budgets.py and tests/soak exceed each.
"""

from __future__ import annotations

MIB = 1 << 20

#: Entries of directories that an image made, read for one purpose. Real library directories have up to 10,000.
ENTRIES = 65_536
#: Bytes of their names, and of the texts of their links.
NAME_BYTES = 16 * MIB
#: Seconds in which links are put back after a failure, at the end of undo.
RESTORE_S = 1.5
#: Seconds of undo, what is mounted first; then the process that undoes is killed. ``rpc.stop`` has the same number: it
#: knows nothing of this package, and a hook that has nothing to do does not import it.
UNDO_S = 2
#: --timeout where none is given, in seconds.
TIMEOUT_S = 10.0
#: Of --timeout, how long an image can hold a start: the container service's waits together, ldconfig, and what is kept
#: for undo. Behind them comes the end of the service (``rpc.client``).
IMAGE_TIMEOUTS, LDCONFIG_TIMEOUTS, RESERVE_TIMEOUTS = 1.1, 0.8, 0.25
#: Seconds that no start with the default timeout takes, whatever the image is.
START_S = 15.0
#: Bytes of config.json and of the state on a hook's stdin. With the usual limit of the stack no process can be executed
#: with more than 2 MiB of environment (execve(2)); decoded, JSON takes up to 36 times its size.
CONFIG_BYTES, STATE_BYTES = 3 * MIB, 1 * MIB
#: Bytes of a file that undo copies: ldconfig's table of known libraries has some 50 KiB.
TABLE_BYTES = 1 * MIB


class Budget:
    """Of one process. 0: not limited as such; the page says by what it is.

    memory: bytes of private memory (RLIMIT_DATA where ``is_limit``). cpu: seconds of processor time (RLIMIT_CPU).
    wall: seconds that are waited for it with the default timeout. file: bytes of a file that it writes (RLIMIT_FSIZE
    where ``is_limit``). entries: of directories of the image, read. beyond: what happens then.
    """

    __slots__ = ("beyond", "cpu", "entries", "file", "is_limit", "memory", "name", "wall")

    def __init__(
        self,
        name: str,
        *,
        cpu: int,
        wall: float,
        file: int,
        entries: int,
        beyond: str,
        memory: int = 128 * MIB,
        is_limit: bool = True,
    ) -> None:
        self.name = name
        self.memory = memory
        self.cpu = cpu
        self.wall = wall
        self.file = file
        self.entries = entries
        self.beyond = beyond
        self.is_limit = is_limit


LDCONFIG = Budget(
    "ldconfig, and the standby process that waits to be it",
    cpu=10,
    wall=TIMEOUT_S * LDCONFIG_TIMEOUTS,
    file=16 * MIB,
    entries=0,
    beyond="`ldcache error`; all is undone, the container does not start",
)
#: NVML reads nothing of an image. A driver that no process keeps loaded takes seconds for each GPU, in the kernel. What
#: it takes was not measured with many GPUs: a limit that is too low would end every start.
DRIVER = Budget(
    "NVML helper",
    memory=1024 * MIB,
    cpu=60,
    wall=TIMEOUT_S,
    file=64 * MIB,
    entries=0,
    beyond="`initialization error` or `detection error`, before the container is touched",
)
CONTAINER = Budget(
    "container service, and the process that does a CDI hook's work",
    cpu=int(START_S),
    wall=TIMEOUT_S * IMAGE_TIMEOUTS,
    file=TABLE_BYTES,
    entries=ENTRIES,
    beyond=f"`mount error`, `ldcache error` or `container error`; undo within {UNDO_S} s",
)
#: Its work is done by one of CONTAINER's budget, ``nvc.cdi.worker``.
HOOK = Budget(
    "nvc-hook, nvc-cdi-hook, `configure`, and the standby worker that does their work",
    cpu=0,
    wall=START_S,
    file=0,
    entries=ENTRIES,
    beyond="`input error` for what is too large; the helpers are ended",
    is_limit=False,
)
BUDGETS = (LDCONFIG, DRIVER, CONTAINER, HOOK)
