"""libnvc-guard.so (native/guard/guard.h): containers kept inside their shares by seccomp user notification.

The library has threads of its own. A process that loads it must not enter namespaces afterwards
(setns wants one thread).
"""

from __future__ import annotations

import ctypes
import errno
import os

from nvc.base.errors import InitializationError
from nvc.base.record import Record
from nvc.bindings.reasons import REASONS, word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

NAME = "libnvc-guard.so"
#: share.h: SHARE_MAX_GPUS. guard.h: GUARD_REASONS.
_GPUS, _REASONS = 32, 32
_EVENTS = 256
_PROCESSES = 512


class _Status(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64 * _GPUS) for name in ("memory", "managed", "driver_usage")),
        *((name, ctypes.c_uint32 * _GPUS) for name in ("groups", "slice", "frozen")),
        ("frozen_ns", ctypes.c_uint64 * _GPUS),
        *((name, ctypes.c_uint64) for name in ("notifications", "performed", "continued", "refused")),
        ("reasons", ctypes.c_uint64 * _REASONS),
        ("handling_ns", ctypes.c_uint64),
        ("processes", ctypes.c_uint32),
        ("listeners", ctypes.c_uint32),
        *((name, ctypes.c_uint32) for name in ("waits_for", "spare")),
        ("waits_ns", ctypes.c_uint64),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("when_ns", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("tenant", "reason", "number", "pid")),
        ("repeated", ctypes.c_uint64),
    )


class _Phase(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("tenant", "gpu", "since", "until"))


class _Node(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("kind", "minor")),
        *((name, ctypes.c_uint64) for name in ("device", "inode", "spare")),
    )


class _Channel(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("client", "subdevice", "channel")),
        ("descriptor", ctypes.c_int32),
    )


class _Attached(ctypes.Structure):
    _fields_ = (("frozen_ns", ctypes.c_uint64), ("processes", ctypes.c_uint32), ("frozen", ctypes.c_uint32))


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint32), ("clients", ctypes.c_uint32), ("memory", ctypes.c_uint64 * _GPUS))


class GpuStatus(Record):
    """What a tenant has of one GPU, in the order of its limits.

    memory: bytes charged; managed: of them, mappings of managed memory; driver_usage: bytes that the driver
    reports, 0 when it was not queried. groups: compute groups. slice: microseconds as last written, 0: libcuda's own.
    frozen_ns: since the tenant was added.
    """

    memory: int
    managed: int
    driver_usage: int
    groups: int
    slice: int
    frozen: bool
    frozen_ns: int


class TenantStatus(Record):
    """A tenant: its GPUs, and what was counted since it was added. reasons: (word, count), those above 0.

    waits_for: the process that the guard's thread waits for, 0: none; for so many ns.
    """

    gpus: tuple[GpuStatus, ...]
    notifications: int
    performed: int
    continued: int
    refused: int
    reasons: tuple[tuple[str, int], ...]
    handling_ns: int
    processes: int
    listeners: int
    waits_for: int = 0
    waits_ns: int = 0


class Event(Record):
    """Something refused, or answered without being done.

    when_ns: CLOCK_REALTIME. number: the escape, class or control. pid: host's. repeated: how often again, unread.
    """

    when_ns: int
    tenant: int
    reason: str
    number: int
    pid: int
    repeated: int


def find() -> str:
    """The library's path: nvc/linux where it is installed (LINUXDIR of native/Makefile), build/native in a checkout.

    In a wheel it is beside the packages, where the interpreter does not take it for a module. Raises
    InitializationError when it is in none of these places.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    above = os.path.dirname(package)
    for path in (f"{package}/linux/{NAME}", f"{package}/native/{NAME}", f"{above}/build/native/{NAME}"):
        if os.path.exists(path):
            return path
    raise InitializationError(f"{NAME} is not installed", hint="run `make native`, or install the package again")


class Guard:
    """The library, with its threads; one a process. Close it: tenants that are frozen are thawed first."""

    def __init__(self, device_directory: str = "/dev") -> None:
        """device_directory: where the driver's nodes are. Raises InitializationError, OSError."""
        self._phases: int | None = None
        self._library = ctypes.CDLL(find(), use_errno=True)
        declare(self._library)
        self._guard = self._library.guard_create(os.fsencode(device_directory))
        if not self._guard:
            raise OSError(ctypes.get_errno(), "guard_create")
        self._gpus: dict[int, int] = {}
        #: What was said last of tenants that are busy now.
        self._status: dict[int, TenantStatus] = {}
        self._processes: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {}
        self._phases = self._library.guard_phases_create(self._guard)
        if not self._phases:
            self.close()
            raise MemoryError("guard_phases_create")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads. A second time is nothing."""
        if self._phases:
            self._library.guard_phases_destroy(self._phases)
            self._phases = None
        if self._guard:
            self._library.guard_destroy(self._guard)
            self._guard = None

    @property
    def sees_driver(self) -> bool:
        """Whether the driver can be asked what processes hold (guard.h)."""
        return bool(self._library.guard_sees_driver(self._guard))

    @property
    def sees_exec(self) -> bool:
        """Whether the kernel tells of an execve of processes that map managed memory (guard.h)."""
        return bool(self._library.guard_sees_exec(self._guard))

    @property
    def event_descriptor(self) -> int:
        """Readable when ``events`` has something."""
        return int(self._library.guard_event_descriptor(self._guard))

    def add(self, tenant: int, limits: bytes, gpus: int) -> None:
        """A tenant by a number of the caller's. limits: a limits file; gpus: how many it names. Raises OSError."""
        self._check(self._library.guard_tenant_add(self._guard, tenant, limits), "guard_tenant_add")
        self._gpus[tenant] = gpus
        self.status(tenant)  # so that there is one to return while its first call of the driver is in flight

    def update(self, tenant: int, limits: bytes) -> None:
        """Set another share of the same GPUs. Raises OSError; EBUSY while a driver call of the tenant is in flight."""
        self._check(self._library.guard_tenant_update(self._guard, tenant, limits), "guard_tenant_update")

    def listen(self, tenant: int, listener: int) -> None:
        """Add a listener of the tenant's; the descriptor is duplicated. Raises OSError."""
        self._check(self._library.guard_tenant_listen(self._guard, tenant, listener), "guard_tenant_listen")

    def inflight(self, tenant: int, file: int) -> None:
        """Record the in-flight notification in ``file`` (guard.h), of 8 bytes. Before ``listen``. Raises OSError."""
        self._check(self._library.guard_tenant_in_hand(self._guard, tenant, file), "guard_tenant_in_hand")

    def keep(self, tenant: int, file: int, before: int, listeners: Sequence[int]) -> bool:
        """Keep the tenant's ledger in ``file``, which is empty; ``before``: that of a guard that was killed, or -1.

        listeners: of the tenant, for the killed guard's in-flight notification. Returns whether that was answered.
        Before ``listen``. Raises ValueError when ``before`` is invalid (the new file is used then), OSError.
        """
        room = (ctypes.c_int * max(1, len(listeners)))(*listeners)
        result = self._library.guard_tenant_keep(self._guard, tenant, file, before, room, len(listeners))
        if before >= 0 and result in (-errno.EINVAL, -errno.ENOMEM):
            raise ValueError("this ledger cannot be read: of another build, incomplete, or too large for memory")
        return self._check(result, "guard_tenant_keep") == 1

    def channels(self, tenant: int, file: int) -> None:
        """List the tenant's compute channels in ``file`` (guard.h), an empty one. Before ``listen``. Raises OSError."""
        self._check(self._library.guard_tenant_channels(self._guard, tenant, file), "guard_tenant_channels")

    def remove(self, tenant: int) -> None:
        """Remove a tenant; calls of its remaining processes fail with ENOSYS. Raises OSError."""
        self._check(self._library.guard_tenant_remove(self._guard, tenant), "guard_tenant_remove")
        for known in (self._gpus, self._status, self._processes):
            known.pop(tenant, None)

    def gone(self, tenant: int) -> bool:
        """Whether nothing of the tenant is left: no filter, no process, no memory. Raises OSError."""
        result = self._library.guard_tenant_gone(self._guard, tenant)
        return result != -errno.EBUSY and self._check(result, "guard_tenant_gone") == 1

    def slice(self, tenant: int, gpu: int, microseconds: int) -> None:
        """The timeslice of each of the tenant's compute groups, 0: their own from the next on. Raises OSError."""
        self._check(self._library.guard_tenant_slice(self._guard, tenant, gpu, microseconds), "guard_tenant_slice")

    def freeze(self, tenant: int, gpu: int, frozen: bool) -> None:
        """Disable the tenant's channels on a GPU, or enable them; after an in-flight call. Raises OSError."""
        result = self._library.guard_tenant_freeze(self._guard, tenant, gpu, frozen)
        if result != -errno.EBUSY:
            self._check(result, "guard_tenant_freeze")

    def plan(self, uuid: bytes, period: int, phases: Sequence[tuple[int, int, int, int]], valid: int) -> None:
        """When tenants with a cap are on, on the GPU with this UUID, from now on; no phases: no plan. Raises OSError.

        period: microseconds. phases: (tenant, index of the GPU in its limits, on from, on until), microseconds of the
        period; ``until`` may be beyond its end. valid: milliseconds in which ``renew`` must come, else all are thawed.
        While a tenant is in a plan, do not call ``freeze`` for it.
        """
        room = (_Phase * max(1, len(phases)))(*(_Phase(*phase) for phase in phases))
        call = self._library.guard_phases_set
        self._check(call(self._phases, uuid, period, room, len(phases), valid), "guard_phases_set")

    def renew(self, valid: int) -> bool:
        """All plans hold for so many milliseconds more. False: one had expired, and must be set again."""
        result: int = self._library.guard_phases_renew(self._phases, valid)
        return result == 0

    def attach(
        self, number: int, pidfd: int, node: tuple[int, int], channels: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """One more process that is in plans by ``number``, which has the bit ATTACHED. Raises OSError.

        node: (device, inode) of the control node. channels: (client, subdevice, channel, descriptor), those of one
        subdevice side by side; descriptors are copies of the process's, which are copied again and held until it ends.
        """
        room = (_Channel * max(1, len(channels)))(*(_Channel(*channel) for channel in channels))
        call = self._library.guard_attach
        kept = _Node(1, 0, *node, 0)
        self._check(call(self._phases, number, pidfd, ctypes.byref(kept), room, len(channels)), "guard_attach")

    def detach(self, number: int) -> None:
        """Thaw and remove the processes of the number, which is in no plan any more. Raises OSError."""
        self._check(self._library.guard_detach(self._phases, number), "guard_detach")

    def attached(self, number: int) -> tuple[int, bool, int]:
        """(living processes, whether they are frozen, nanoseconds that they were). Raises OSError (ENOENT)."""
        found = _Attached()
        call = self._library.guard_attached_status
        self._check(call(self._phases, number, ctypes.byref(found)), "guard_attached_status")
        return found.processes, bool(found.frozen), found.frozen_ns

    def status(self, tenant: int) -> TenantStatus:
        """The last one while the driver makes a call for the tenant. Raises OSError."""
        got = _Status()
        result = self._library.guard_tenant_status(self._guard, tenant, ctypes.byref(got))
        if result == -errno.EBUSY and tenant in self._status:
            return self._status[tenant]
        self._check(result, "guard_tenant_status")
        gpus = tuple(
            GpuStatus(
                got.memory[index],
                got.managed[index],
                got.driver_usage[index],
                got.groups[index],
                got.slice[index],
                bool(got.frozen[index]),
                got.frozen_ns[index],
            )
            for index in range(self._gpus.get(tenant, 0))
        )
        reasons = tuple((text, got.reasons[index]) for index, text in enumerate(REASONS) if got.reasons[index])
        counted = (got.notifications, got.performed, got.continued, got.refused)
        waits = got.waits_for, got.waits_ns
        found = TenantStatus(gpus, *counted, reasons, got.handling_ns, got.processes, got.listeners, *waits)
        self._status[tenant] = found
        return found

    def processes(self, tenant: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(host pid, bytes a GPU, as last reported by the driver) of processes with driver calls, as ``status``.

        Raises OSError.
        """
        room = (_Process * _PROCESSES)()
        count = self._library.guard_tenant_processes(self._guard, tenant, room, _PROCESSES)
        if count == -errno.EBUSY:
            return self._processes.get(tenant, ())
        count = self._check(count, "guard_tenant_processes")
        gpus = self._gpus.get(tenant, 0)
        self._processes[tenant] = tuple((one.pid, tuple(one.memory[:gpus])) for one in room[: min(count, _PROCESSES)])
        return self._processes[tenant]

    def events(self) -> tuple[Event, ...]:
        """What happened since the last time, oldest first; at most 256, come again."""
        room = (_Event * _EVENTS)()
        count = self._library.guard_events(self._guard, room, _EVENTS)
        return tuple(
            Event(one.when_ns, one.tenant, word(one.reason), one.number, one.pid, one.repeated) for one in room[:count]
        )

    def _check(self, result: int, call: str) -> int:
        if result < 0:
            raise OSError(-result, f"{call}: {os.strerror(-result)}")
        return result


def declare(library: Any) -> None:
    """Give the library's functions their types."""
    pointer, number, signed = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
    for name, result, arguments in (
        ("guard_create", pointer, (ctypes.c_char_p,)),
        ("guard_sees_driver", signed, (pointer,)),
        ("guard_sees_exec", signed, (pointer,)),
        ("guard_destroy", None, (pointer,)),
        ("guard_event_descriptor", signed, (pointer,)),
        ("guard_events", signed, (pointer, pointer, number)),
        ("guard_tenant_add", signed, (pointer, number, ctypes.c_char_p)),
        ("guard_tenant_update", signed, (pointer, number, ctypes.c_char_p)),
        ("guard_tenant_listen", signed, (pointer, number, signed)),
        ("guard_tenant_in_hand", signed, (pointer, number, signed)),
        ("guard_tenant_keep", signed, (pointer, number, signed, signed, pointer, number)),
        ("guard_tenant_channels", signed, (pointer, number, signed)),
        ("guard_tenant_remove", signed, (pointer, number)),
        ("guard_tenant_status", signed, (pointer, number, pointer)),
        ("guard_tenant_processes", signed, (pointer, number, pointer, number)),
        ("guard_tenant_gone", signed, (pointer, number)),
        ("guard_tenant_slice", signed, (pointer, number, number, number)),
        ("guard_tenant_freeze", signed, (pointer, number, number, number)),
        ("guard_phases_create", pointer, (pointer,)),
        ("guard_phases_destroy", None, (pointer,)),
        ("guard_phases_set", signed, (pointer, ctypes.c_char_p, number, pointer, number, number)),
        ("guard_phases_renew", signed, (pointer, number)),
        ("guard_attach", signed, (pointer, number, signed, pointer, pointer, number)),
        ("guard_detach", signed, (pointer, number)),
        ("guard_attached_status", signed, (pointer, number, pointer)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


#: guard.h: GUARD_ATTACHED.
ATTACHED = 1 << 31
#: What a tenant's unknown number gives.
GONE = errno.ENOENT
