"""A share as values: what was asked for (``Share``), and what a container gets (``Resolved``). Frozen, JSON-ready."""

from __future__ import annotations

from nvc.base.record import Record

PRIORITIES = ("normal", "low", "high", "service")
SERVICE = PRIORITIES[3]
#: Priorities, the lowest first.
RANK = {"low": 0, "normal": 1, "high": 2, SERVICE: 3}
#: What a service waits for the GPU at most, in microseconds: without a setting, and what can be said.
DEFAULT_LATENCY_US, LEAST_LATENCY_US, MOST_LATENCY_US = 1_000, 400, 100_000
#: A whole GPU's time in the unit of ``cap``: 1/1000.
CAP_WHOLE = 1000
#: A whole GPU's memory in the unit of ``memory_part``: 1/1,000,000.
WHOLE_MEMORY = 1_000_000
WEIGHT_LIMIT = 1000
#: Seconds of ``idle`` that can be said.
LEAST_IDLE_S, MOST_IDLE_S = 1, 86400
#: What a container has that does not say: libcuda's own timeslice.
DEFAULT_WEIGHT = 10
#: How many of the driver's clients are tried for a process that is attached: usually, and at most.
PROBES, PROBES_LIMIT = 512, 65536


class GpuShare(Record):
    """What is requested of one GPU. A field with its default sets nothing: the next source in order decides it.

    memory: bytes, or 0. memory_part: of the GPU's memory, in 1/1,000,000, or 0; at most one of the two is said.
    request, request_part: in the same units, what is guaranteed of it; both 0: all of it (no range).
    cap: of the GPU's time, in 1/1000 (1000: no cap), or 0. weight: 1 to 1000, or 0. priority: one of PRIORITIES or "".
    oversubscribe: may memory be more than the GPU has, the rest in the host's? None: not said. latency: microseconds
    that a service waits at most, or 0. idle: seconds without computing after which it may be suspended, or 0.
    """

    memory: int = 0
    memory_part: int = 0
    cap: int = 0
    weight: int = 0
    priority: str = ""
    oversubscribe: bool | None = None
    latency: int = 0
    request: int = 0
    request_part: int = 0
    idle: int = 0


class Share(Record):
    """What is requested for a container.

    default: for every GPU that ``per_gpu`` does not name. per_gpu: (selector, share) pairs, selectors in the form of
    ``nvc.share.spec``. off: no share at all; then nothing else is said. group: containers with one name are one tenant;
    of several groups, all their names (``nvc.share.spec.JOINT``). requires_guard: the container does not start without
    the guard, whatever the node's rules are.
    """

    default: GpuShare | None = None
    per_gpu: tuple[tuple[str, GpuShare], ...] = ()
    off: bool = False
    group: str = ""
    requires_guard: bool = False


class ResolvedGpu(Record):
    """What a container gets of one GPU; every field says something.

    uuid: "GPU-...". minor: of /dev/nvidia<minor>. memory: bytes, 0 for no limit. cap: 1/1000; 1000 is no cap.
    request, most: of a range, bytes that are guaranteed, and the most; ``memory`` is what is in force, from one to the
    other. 0: it has no range. idle: seconds after which it may be suspended for others; 0: never.
    weight: 1 to 1000; 0: libcuda's own timeslice stays. priority: one of PRIORITIES. latency: microseconds that a
    service waits for the others at most; 0 with every other priority.
    """

    uuid: str
    minor: int
    memory: int = 0
    cap: int = CAP_WHOLE
    weight: int = 0
    priority: str = "normal"
    oversubscribe: bool = False
    latency: int = 0
    request: int = 0
    most: int = 0
    idle: int = 0


class Room(Record):
    """A GPU, for admission. memory: bytes in all, 0: not known. always: requests count without a range as well."""

    uuid: str
    memory: int
    always: bool


class Resolved(Record):
    """The outcome for a container.

    gpus: one entry per GPU that the container sees, in its order; empty when there is no share. source: a name of
    ``nvc.share.sources.ORDER``, a dialect's variable, "default" or "". warnings: for the log and the user.
    text: the share that was granted, as a share spec with percentages resolved. group, requires_guard: as in
    ``Share``.
    """

    gpus: tuple[ResolvedGpu, ...] = ()
    source: str = ""
    warnings: tuple[str, ...] = ()
    text: str = ""
    group: str = ""
    requires_guard: bool = False

    def __bool__(self) -> bool:
        return bool(self.gpus)

    @property
    def limits_memory(self) -> bool:
        return any(gpu.memory for gpu in self.gpus)

    @property
    def needs_guard(self) -> str:
        """The setting that only the guard enforces; "": there is none.

        The library counts one container: each of a group would have the whole quota. It knows no other one, whose
        slices are short beside a service, and whose request needs the memory that a range has above its own.
        """
        if self.group:
            return f"group={self.group}"
        if any(gpu.priority == SERVICE for gpu in self.gpus):
            return f"priority={SERVICE}"
        if any(gpu.idle for gpu in self.gpus):
            return "idle"
        return "a range of mem" if any(gpu.request for gpu in self.gpus) else ""

    @property
    def oversubscribe(self) -> bool:
        return any(gpu.oversubscribe for gpu in self.gpus)
