"""The node's usage page (native/guard/usage_page.h): what the driver reports of each process that uses a GPU.

Memory, and time as its samples and its trace of context switches have it (native/supervisor/prober_time.c and
prober_trace.c). The prober writes it twice a second (``nvc.guard.prober``), supervisors and the agent read it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time

from nvc.base.errors import InitializationError, reason
from nvc.base.record import Record
from nvc.share.limits import uuid_text

#: usage_page.h: USAGE_MAGIC, USAGE_VERSION, USAGE_ROWS; share.h: SHARE_MAX_GPUS; guard.h: GUARD_CONTENTION_MAGIC.
MAGIC, VERSION, ROWS, _GPUS, CONTENTION_MAGIC = 0x554C564E, 3, 8192, 32, 0x4F434E564E
#: usage_page.h: USAGE_FRESH_NS.
FRESH_NS = 5_000_000_000
#: Between two writings of a copy lies a second: a reader that is overtaken begins again.
_ATTEMPTS = 3


class _Last(ctypes.Structure):
    _fields_ = (("tenant", ctypes.c_uint64), ("called_ns", ctypes.c_uint64))


class _Contention(ctypes.Structure):
    _fields_ = (("magic", ctypes.c_uint64), ("written_ns", ctypes.c_uint64), ("last", _Last * 2))


class _Row(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("pid", "spare")),
        *((name, ctypes.c_uint64) for name in ("own", "duplicated", "busy_ns", "traced_ns")),
    )


class _Gpu(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint64) for name in ("asked_ns", "used", "total", "idle")),
        *((name, ctypes.c_uint64) for name in ("sampled_ns", "busy_ns", "traced_ns", "untraced_ns")),
        *((name, ctypes.c_uint32) for name in ("first", "count")),
    )


class _Head(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("sequence", "questions")),
        *((name, ctypes.c_uint32) for name in ("gpu_count", "row_count")),
        ("gpus", _Gpu * _GPUS),
    )


class _Usage(ctypes.Structure):
    _fields_ = (("head", _Head), ("rows", _Row * ROWS))


class _Page(ctypes.Structure):
    _fields_ = (
        ("contention", _Contention),
        *((name, ctypes.c_uint32) for name in ("magic", "version", "index", "prober")),
        ("copies", _Usage * 2),
    )


#: The part of the page that always has room: which tenants called the driver, and what is written at a prober's start.
LEAST = _Page.copies.offset
_ROW = ctypes.sizeof(_Row)
#: Of the page: magic, version, index, prober.
_IDENTITY = struct.Struct("=4I")


class GpuUsage(Record):
    """A GPU. used, total: bytes of its heap, the driver's own number. asked_ns: CLOCK_MONOTONIC.

    idle: ``used`` beyond all reported memory, when the prober began. processes: host pid -> bytes that its clients
    have allocated and hold (memPrivate and memSharedOwned of GET_PID_INFO).

    sampled_ns: of so much time since the prober began there are samples, 0: the driver takes none; busy_ns: of it, in
    which the GPU computed. computed: host pid -> of that, in which a sample found the process on the GPU.

    traced_ns: since its first context switch that is traced, 0: the driver traces none; untraced_ns: of it, of which
    nothing is known. traced: host pid -> of it, in which the process was on the engine, whether it computed or not.
    """

    uuid: str
    asked_ns: int
    used: int
    total: int
    idle: int
    processes: dict[int, int]
    sampled_ns: int = 0
    busy_ns: int = 0
    computed: dict[int, int] = {}
    traced_ns: int = 0
    untraced_ns: int = 0
    traced: dict[int, int] = {}


class Usage(Record):
    """What the driver said last. gpus: by UUID, those about which it answered within the last seconds.

    questions: of GET_PID_INFO, since the prober's start.
    """

    gpus: dict[str, GpuUsage]
    questions: int


def open_page(directory: str) -> int:
    """The page of an agent's directory, made where there is none: a descriptor, the caller's.

    directory "": a page of the caller alone. Raises InitializationError.
    """
    if not directory:
        return os.memfd_create("nvc-contention", os.MFD_CLOEXEC)
    path = f"{directory}/contention"
    try:  # supervisors of an agent before this one have it open
        made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.posix_fallocate(made, 0, LEAST)  # without room for the rest supervisors ask the driver themselves
    except OSError as error:
        raise InitializationError(f"{path}: {reason(error)}", hint="make room in /run") from None
    return made


class Page:
    """A reader of the page, which remembers what it read last: most of it is the same again, half a second later."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        #: Which writing ``_gpus`` are of.
        self._sequence = 0, 0
        self._gpus: list[tuple[bytes, GpuUsage]] = []
        self._questions = 0

    def read(self) -> Usage:
        """Without GPUs where no prober writes it. Raises OSError."""
        for _ in range(_ATTEMPTS):
            head = os.pread(self._descriptor, _IDENTITY.size, _Page.magic.offset)
            if len(head) < _IDENTITY.size:
                break
            magic, version, index, prober = _IDENTITY.unpack(head)
            if (magic, version) != (MAGIC, VERSION) or index > 1:
                break
            at = _Page.copies.offset + index * ctypes.sizeof(_Usage)
            sequence = prober, int.from_bytes(os.pread(self._descriptor, 8, at), "little")
            if sequence == self._sequence or self._take(at, sequence):
                oldest = max(0, time.monotonic_ns() - FRESH_NS)
                return Usage({one.uuid: one for _, one in self._gpus if one.asked_ns > oldest}, self._questions)
        return Usage({}, 0)

    def _take(self, at: int, sequence: tuple[int, int]) -> bool:
        """False: it was written once more meanwhile."""
        data = os.pread(self._descriptor, ctypes.sizeof(_Head), at)
        head = _Head.from_buffer_copy(data.ljust(ctypes.sizeof(_Head), b"\0"))
        size = min(head.row_count, ROWS) * _ROW
        rows = os.pread(self._descriptor, size, at + _Usage.rows.offset).ljust(size, b"\0")
        again = int.from_bytes(os.pread(self._descriptor, 8, at), "little")
        if not sequence[1] == head.sequence == again:
            return False
        before = {one.uuid: (own, one) for own, one in self._gpus}
        found = []
        for gpu in head.gpus[: min(head.gpu_count, _GPUS)]:
            own = rows[gpu.first * _ROW : (gpu.first + gpu.count) * _ROW]
            found.append((own, _gpu(gpu, own, before.get(uuid_text(bytes(gpu.uuid))))))
        self._sequence, self._gpus, self._questions = sequence, found, int(head.questions)
        return True


def written_ns(descriptor: int) -> int:
    """When the prober wrote last (CLOCK_MONOTONIC); 0: it never did. Raises OSError."""
    data = os.pread(descriptor, ctypes.sizeof(_Contention), 0)
    found = _Contention.from_buffer_copy(data.ljust(ctypes.sizeof(_Contention), b"\0"))
    return int(found.written_ns) if found.magic == CONTENTION_MAGIC else 0


def is_foreign(descriptor: int) -> bool:
    """Whether a prober of another version writes it: of an installation before this one. Raises OSError."""
    magic, version = (
        int.from_bytes(os.pread(descriptor, 4, one.offset), "little") for one in (_Page.magic, _Page.version)
    )
    return magic == MAGIC and version != VERSION


def prober_pid(descriptor: int) -> int:
    """Of the prober that wrote last; 0: none. Raises OSError."""
    return int.from_bytes(os.pread(descriptor, 4, _Page.prober.offset), "little")


def _gpu(found: _Gpu, rows: bytes, before: tuple[bytes, GpuUsage] | None) -> GpuUsage:
    """before: the rows that were read last, and what they said."""
    sizes = (int(found.used), int(found.total), int(found.idle))
    sampled = (int(found.sampled_ns), int(found.busy_ns))
    if before is not None and before[0] == rows:
        processes, computed, traced = before[1].processes, before[1].computed, before[1].traced
    else:
        own = (_Row * (len(rows) // _ROW)).from_buffer_copy(rows)
        processes = {int(row.pid): int(row.own) for row in own}
        computed = {int(row.pid): int(row.busy_ns) for row in own if row.busy_ns}
        traced = {int(row.pid): int(row.traced_ns) for row in own if row.traced_ns}
    answer = GpuUsage(uuid_text(bytes(found.uuid)), int(found.asked_ns), *sizes, processes, *sampled, computed)
    return answer.replace(traced_ns=int(found.traced_ns), untraced_ns=int(found.untraced_ns), traced=traced)
