"""Counters of a tenant (native/supervisor/pages.h): a file that its supervisor writes and the agent reads.

Neither waits for the other. The file holds two copies of its content and the index of the valid one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import time

from nvc.base.record import Record
from nvc.bindings.reasons import REASONS, word

#: share.h: SHARE_MAXGPUS. guard.h: GUARD_REASONS. pages.h: COUNTERS_EVENTS, COUNTERS_PROCESSES.
GPUS, _REASONS = 32, 32
EVENTS, PROCESSES = 256, 512
#: pages.h: COUNTERS_BUILD.
_BUILD = 32
#: Counters are published every 20 ms at most: a supervisor that does so that often while they are read is not ours.
_ATTEMPTS = 100
#: What a version consists of (PEP 440).
_VERSION = re.compile(rb"[0-9A-Za-z.+!_-]{1,31}")
COUNTERS_MAGIC, VERSION = 0x434C564E, 1
#: Of the counters' file: magic, version, index, spare, event_count.
_HEAD = struct.Struct("<4IQ")


class _Status(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64 * GPUS) for name in ("memory", "managed", "driver_usage")),
        *((name, ctypes.c_uint32 * GPUS) for name in ("groups", "slice", "frozen")),
        ("frozen_ns", ctypes.c_uint64 * GPUS),
        *((name, ctypes.c_uint64) for name in ("notifications", "performed", "continued", "refused")),
        ("reasons", ctypes.c_uint64 * _REASONS),
        ("handling_ns", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("processes", "listeners", "waits_for", "spare")),
        *((name, ctypes.c_uint64) for name in ("waits_ns", "called_ns")),
    )


class _Attached(ctypes.Structure):
    _fields_ = (("frozen_ns", ctypes.c_uint64), ("processes", ctypes.c_uint32), ("frozen", ctypes.c_uint32))


class _Process(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("pid", "clients")),
        ("start_time", ctypes.c_uint64),
        ("memory", ctypes.c_uint64 * GPUS),
    )


class _Counters(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("generation", "published_ns")),
        *((name, ctypes.c_uint32) for name in ("is_gone", "sees_driver", "sees_exec", "process_count")),
        ("status", _Status),
        ("attached", _Attached),
        ("processes", _Process * PROCESSES),
    )


class _CountersHead(ctypes.Structure):
    """Without the processes: 1 KiB in place of 80, for what is read four times a second for each tenant."""

    _fields_ = _Counters._fields_[:-1]


_COUNTERS_SIZE, _HEAD_SIZE = ctypes.sizeof(_Counters), ctypes.sizeof(_CountersHead)


class _Event(ctypes.Structure):
    _fields_ = (
        ("when_ns", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("tenant", "reason", "number", "pid")),
        ("repeated", ctypes.c_uint64),
    )


class _CountersFile(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("magic", "version", "index", "spare")),
        ("event_count", ctypes.c_uint64),
        ("events", _Event * EVENTS),
        ("counters", _Counters * 2),
        ("build", ctypes.c_uint8 * _BUILD),
    )


class GpuStatus(Record):
    """What a tenant has of one GPU, in the order of its limits.

    memory: bytes charged; managed: of them, mappings of managed memory; driver_usage: bytes that the driver
    reports, 0 when it was not queried. groups: compute groups. slice: microseconds as last written, 0: libcuda's own.
    frozen_ns: while it had groups, since the tenant was added.
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

    called_ns: its last call of the driver (CLOCK_MONOTONIC), 0: none.
    """

    gpus: tuple[GpuStatus, ...]
    notifications: int
    performed: int
    continued: int
    reasons: tuple[tuple[str, int], ...]
    handling_ns: int
    processes: int
    listeners: int
    called_ns: int = 0


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


class Counters:
    """The counters of a tenant. What the supervisor wrote is not trusted: numbers, of which only some are used."""

    def __init__(self, descriptor: int, gpus: int) -> None:
        """The descriptor is this object's. gpus: how many the tenant's limits name."""
        self.descriptor = descriptor
        self._gpus = min(gpus, GPUS)
        self._events = 0

    def close(self) -> None:
        os.close(self.descriptor)

    @property
    def generation(self) -> int:
        """Of the plan that is in force. Raises OSError."""
        return int(self._read().generation)

    @property
    def gone(self) -> bool:
        """Whether no listener, process or memory of the tenant is left. Raises OSError."""
        return self.state[0]

    @property
    def state(self) -> tuple[bool, bool, bool]:
        """(``gone``; whether the supervisor can query the driver; whether an execve is reported). Raises OSError.

        Nothing is missing before the first publishing.
        """
        found = self._read()
        is_new = not found.published_ns
        return bool(found.is_gone), is_new or bool(found.sees_driver), is_new or bool(found.sees_exec)

    @property
    def build(self) -> str:
        """The supervisor's version, as it says; "" where it says none, or something that is none. Raises OSError."""
        end = os.fstat(self.descriptor).st_size  # in every version of the file
        text = os.pread(self.descriptor, _BUILD, max(0, end - _BUILD)).partition(b"\0")[0]
        return text.decode("ascii") if _VERSION.fullmatch(text) else ""

    @property
    def attached(self) -> tuple[int, bool, int]:
        """(living processes, whether they are frozen, nanoseconds that they were). Raises OSError."""
        found = self._read()
        now, own = max(0, time.monotonic_ns() - found.published_ns), found.attached
        return own.processes, bool(own.frozen), own.frozen_ns + (now if own.frozen else 0)

    def stamp(self) -> tuple[int, int, int]:
        """Another one with each publishing and each event; a tenth of the work of a reading. Raises OSError."""
        _, _, index, _, events = _HEAD.unpack(self._head())
        at = _CountersFile.counters.offset + index % 2 * _COUNTERS_SIZE + _Counters.published_ns.offset
        return index, events, int.from_bytes(os.pread(self.descriptor, 8, at), "little")

    def status(self) -> TenantStatus:
        """As it was published last, at most some 20 ms ago. Raises OSError."""
        return self._status(self._read())

    def published(self) -> tuple[TenantStatus, tuple[tuple[int, tuple[int, ...]], ...]]:
        """``status`` and ``processes`` of one publishing. Raises OSError."""
        rows: list[_Process] = []
        return self._status(self._read(rows)), self._pids(rows)

    def processes(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(host pid, bytes a GPU, as last reported by the driver) of processes with driver calls. Raises OSError."""
        rows: list[_Process] = []
        self._read(rows)
        return self._pids(rows)

    def _status(self, found: _CountersHead) -> TenantStatus:
        got, count = found.status, self._gpus
        now = max(0, time.monotonic_ns() - found.published_ns)
        columns = (got.memory, got.managed, got.driver_usage, got.groups, got.slice, got.frozen, got.frozen_ns)
        gpus = tuple(
            [
                GpuStatus(memory, managed, usage, groups, us, bool(frozen), ns + (now if frozen and groups else 0))
                for memory, managed, usage, groups, us, frozen, ns in zip(
                    *[column[:count] for column in columns], strict=True
                )
            ]
        )
        reasons = tuple([one for one in zip(REASONS, got.reasons[:], strict=False) if one[1]])
        counted = (got.notifications, got.performed, got.continued, reasons, got.handling_ns)
        return TenantStatus(gpus, *counted, got.processes, got.listeners, got.called_ns)

    def _pids(self, rows: list[_Process]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return tuple([(one.pid, tuple(one.memory[: self._gpus])) for one in rows])

    def events(self) -> list[Event]:
        """Those since the last time, oldest first; what the ring has lost is left out. Raises OSError."""
        count = self._event_count()
        if count == self._events:
            return []
        data = os.pread(self.descriptor, ctypes.sizeof(_Event) * EVENTS, _CountersFile.events.offset)
        first = max(min(self._events, count), self._event_count() - EVENTS)
        ring = (_Event * EVENTS).from_buffer_copy(data.ljust(ctypes.sizeof(_Event) * EVENTS, b"\0"))
        found = []
        for number in range(first, min(count, first + EVENTS)):
            one = ring[number % EVENTS]
            found.append(Event(one.when_ns, one.tenant, word(one.reason), one.number, one.pid, one.repeated))
        self._events = count
        return found

    def skip_events(self) -> None:
        """Those that are there were read, by the agent before this one. Raises OSError."""
        self._events = self._event_count()

    def _event_count(self) -> int:
        """Raises OSError."""
        return int.from_bytes(os.pread(self.descriptor, 8, _CountersFile.event_count.offset), "little")

    def _head(self) -> bytes:
        """Raises OSError."""
        head = os.pread(self.descriptor, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            raise OSError(errno.EBADMSG, "counters without a head")
        return head

    def _read(self, rows: list[_Process] | None = None) -> _CountersHead:
        """rows: gets the processes. Raises OSError."""
        for _ in range(_ATTEMPTS):
            magic, version, index, _, _ = _HEAD.unpack(self._head())
            if (magic, version) != (COUNTERS_MAGIC, VERSION) or index > 1:
                raise OSError(errno.EBADMSG, f"counters of version {version}")
            at = _CountersFile.counters.offset + index * _COUNTERS_SIZE
            data = os.pread(self.descriptor, _HEAD_SIZE, at)
            found = _CountersHead.from_buffer_copy(data.ljust(_HEAD_SIZE, b"\0"))
            found.process_count = min(found.process_count, PROCESSES)
            if rows is not None:
                wanted = found.process_count * ctypes.sizeof(_Process)
                data = os.pread(self.descriptor, wanted, at + _Counters.processes.offset).ljust(wanted, b"\0")
                rows[:] = (_Process * found.process_count).from_buffer_copy(data)
            if _HEAD.unpack(self._head())[2] == index:
                return found
        raise OSError(errno.EAGAIN, "counters were published again and again while they were read")
