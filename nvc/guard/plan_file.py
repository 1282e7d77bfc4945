"""The plan of a tenant (native/supervisor/pages.h): a file that its supervisor reads.

The agent writes it, and what changes a plan without one. The file holds two copies of its content and the index of the
valid one. It lies at DIRECTORY/tenants/NUMBER/plan, and the lock of its writers beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import time

from nvc.guard.pages import GPUS, VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: share.h: LIMITS_SIZE. pages.h: PLAN_MAGIC.
LIMITS_SIZE, PLAN_MAGIC = 8192, 0x504C564E
#: Seconds for another writer of the plan, which takes less than a millisecond.
_LOCK_S = 0.2


class _Phase(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("period", "since", "until", "spare"))


class _Plan(ctypes.Structure):
    _fields_ = (
        ("generation", ctypes.c_uint64),
        ("limits", ctypes.c_uint8 * LIMITS_SIZE),
        ("slice", ctypes.c_uint32 * GPUS),
        ("is_frozen", ctypes.c_uint32 * GPUS),
        ("phases", _Phase * GPUS),
    )


class _PlanFile(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("magic", "version", "index", "spare")),
        ("plans", _Plan * 2),
    )


class Plan:
    """The plan file of a tenant, written by the agent, and by root's commands while it is away.

    Each change is made to what the file has then, under a lock. A change of what is the same already is none.
    """

    def __init__(self, descriptor: int, limits: bytes | None = None, lock: int = -1) -> None:
        """The descriptors are this object's. limits: of a new tenant, for a file that is empty; None: the plan there.

        lock: a file that the supervisor has no descriptor of, for it could hold a lock for ever; -1: one writer alone.
        Raises OSError; ValueError for a file that is none of this version.
        """
        self.descriptor, self._lock = descriptor, lock
        if limits is not None:
            self._plan = _Plan(generation=1)
            self._set_limits(limits)
            self._index = 0
            head = _PlanFile(magic=PLAN_MAGIC, version=VERSION)
            head.plans[0] = self._plan
            self._write(bytes(head), 0)
            return
        self._load()

    def _load(self) -> None:
        """Raises OSError, ValueError."""
        data = os.pread(self.descriptor, ctypes.sizeof(_PlanFile), 0)
        if len(data) != ctypes.sizeof(_PlanFile):
            raise ValueError(f"a plan of {len(data)} bytes")
        found = _PlanFile.from_buffer_copy(data)
        if (found.magic, found.version) != (PLAN_MAGIC, VERSION) or found.index > 1:
            raise ValueError(f"a plan of version {found.version}")
        self._index, self._plan = found.index, _Plan.from_buffer_copy(found.plans[found.index])

    @property
    def generation(self) -> int:
        return int(self._plan.generation)

    @property
    def limits(self) -> bytes:
        return bytes(self._plan.limits)

    def set_limits(self, limits: bytes) -> None:
        """Other limits. Raises OSError."""
        if limits != self.limits:
            with self._changing():
                self._set_limits(limits)

    def set_slice(self, gpu: int, microseconds: int) -> None:
        """Raises OSError."""
        if self._plan.slice[gpu] != microseconds:
            with self._changing():
                self._plan.slice[gpu] = microseconds

    def set_frozen(self, gpu: int, frozen: bool) -> None:
        """Raises OSError."""
        if self._plan.is_frozen[gpu] != int(frozen):
            with self._changing():
                self._plan.is_frozen[gpu] = int(frozen)

    def set_phase(self, gpu: int, period: int, since: int, until: int) -> None:
        """When the tenant is on; period 0: always. Raises OSError."""
        if self.phase(gpu) != (period, since, until):
            with self._changing():
                phase = self._plan.phases[gpu]
                phase.period, phase.since, phase.until = period, since, until

    def phase(self, gpu: int) -> tuple[int, int, int]:
        """(period, since, until)."""
        phase = self._plan.phases[gpu]
        return phase.period, phase.since, phase.until

    def close(self) -> None:
        for descriptor in (self.descriptor, self._lock):
            if descriptor >= 0:
                os.close(descriptor)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Around a change of the plan as it is now, which is published behind. Raises OSError (EBUSY), ValueError."""
        if self._lock < 0:
            yield
            self._publish()
            return
        until = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError(errno.EBUSY, "another process changes the plan and does not end") from None
            time.sleep(0.001)
        try:
            self._load()
            yield
            self._publish()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _set_limits(self, limits: bytes) -> None:
        if len(limits) != LIMITS_SIZE:
            raise ValueError(f"limits of {len(limits)} bytes")
        ctypes.memmove(self._plan.limits, limits, LIMITS_SIZE)

    def _publish(self) -> None:
        self._plan.generation += 1
        index = 1 - self._index
        self._write(bytes(self._plan), _PlanFile.plans.offset + index * ctypes.sizeof(_Plan))
        self._write(index.to_bytes(4, "little"), _PlanFile.index.offset)
        self._index = index

    def _write(self, data: bytes, at: int) -> None:
        if os.pwrite(self.descriptor, data, at) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def create(place: str) -> int:
    """An empty plan in a tenant's directory ``place``: a descriptor, which the caller closes. Raises OSError.

    place "": a file without a name, for a tenant that no later agent finds again.
    """
    if not place:
        # The supervisor watches the file with inotify, which does not report a memfd (Linux 6.14 and later).
        return os.open("/tmp", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    os.makedirs(place, 0o700, exist_ok=True)
    return os.open(f"{place}/plan", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def open_lock(place: str) -> int:
    """The lock of the plan in a tenant's directory: a descriptor, which the caller closes. Raises OSError."""
    return os.open(f"{place}/plan.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def open_plan(place: str) -> Plan:
    """The plan in a tenant's directory; the caller closes it. Raises OSError, ValueError."""
    with contextlib.ExitStack() as undo:
        descriptor = os.open(f"{place}/plan", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        undo.callback(os.close, descriptor)
        lock = open_lock(place)
        undo.callback(os.close, lock)
        plan = Plan(descriptor, lock=lock)
        undo.pop_all()
    return plan
