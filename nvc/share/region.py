"""The region file (native/shim/share.h): what a container's processes use. Read with distrust: it is the tenant's.

Nothing here is mapped, so that a tenant that shortens the file ends no reader; counts are checked before they are used,
texts are made printable, and a slot counts only while its process holds the lock that says so.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from nvc.base.record import Record
from nvc.formats import FormatError

MAGIC, VERSION, PAGE, SLOTS = 0x5243564E, 1, 4096, 8192
SIZE = PAGE * (1 + SLOTS)
#: Slot i is alive while byte LOCKS + i is locked.
LOCKS = 1 << 40
ADMISSION = LOCKS - 1
MAX_GPUS, MAX_CHANNELS, NOTES = 32, 96, 32
PATH, VARIABLE = "/run/nvc-share/region", "NVC_SHIM_REGION"

#: magic, version, page, slots, high, unknown_driver.
HEADER = struct.Struct("<6I")
OWN_MEMORY, OWN_CAP, OWN_WEIGHT, NOTE = 64, 320, 448, 576
#: state, generation, pid_namespace, pid, threads_cap, start_time, name.
_SLOT = struct.Struct("<IIQIIQ16s")
MEMORY, PENDING, MANAGED, GROUPS, FROZEN = 64, 320, 576, 832, 960
CHANNEL_VERSION, CHANNELS, CHANNEL_SIZE = 1216, 1224, 24
SLOT_USED_BYTES = CHANNELS + MAX_CHANNELS * CHANNEL_SIZE
_CHANNEL = struct.Struct("<4I2i")
_NOTE = struct.Struct("<QII")
_QUADS, _WORDS = struct.Struct(f"<{MAX_GPUS}Q"), struct.Struct(f"<{MAX_GPUS}I")

_USED = 1
#: fcntl.h of Linux on every 64-bit machine; Python 3.11's fcntl has no names for them.
F_OFD_GETLK, F_OFD_SETLK = 36, 37
FLOCK = struct.Struct("@hhqqi4x")
#: More than any GPU has: a number beyond it is not believed.
PLAUSIBLE = 1 << 50
_TRIES = 20
#: How often all slots are read again until nothing moved.
_LOOKS = 8
#: Seconds for all of it: the container can have each slot look used, and no list hold still.
_SECONDS = 1.0


class RegionChannel(Record):
    """A compute channel by the handles of its process. gpu: index in the limits' GPUs, or -1."""

    client: int
    subdevice: int
    group: int
    channel: int
    descriptor: int
    gpu: int


class RegionSlot(Record):
    """A living process. memory, pending, managed, frozen_ns: by GPU, in the limits' order; bytes, nanoseconds.

    pid: in the pid namespace with inode ``pid_namespace``. channels: () also where the list did not hold still.
    """

    index: int
    pid: int
    pid_namespace: int
    start_time: int
    name: str
    threads_cap: bool
    memory: tuple[int, ...]
    pending: tuple[int, ...]
    managed: tuple[int, ...]
    groups: tuple[int, ...]
    frozen_ns: tuple[int, ...]
    channels: tuple[RegionChannel, ...] = ()


class RegionHeader(Record):
    """The first page. memory, cap, weight: the container's own, lower limits by GPU, 0: none. notes: (count, last)."""

    high: int
    unknown_driver: bool
    memory: tuple[int, ...]
    cap: tuple[int, ...]
    weight: tuple[int, ...]
    notes: tuple[tuple[int, int], ...]


class Region(Record):
    """All that is to be seen. damaged: slots that said what cannot be."""

    header: RegionHeader
    slots: tuple[RegionSlot, ...]
    damaged: int = 0

    def used(self, gpu: int) -> int:
        """Bytes that living processes have of the GPU with this index in the limits."""
        return sum(slot.memory[gpu] for slot in self.slots)


def header_bytes() -> bytes:
    """The first page of a new file."""
    return HEADER.pack(MAGIC, VERSION, PAGE, SLOTS, 0, 0).ljust(PAGE, b"\0")


def read(descriptor: int, gpus: int = MAX_GPUS, seconds: float = _SECONDS) -> Region:
    """What the region says of the first ``gpus`` GPUs.

    Raises FormatError when it is none of ours, or cannot be read once in time; OSError.
    """
    header = read_header(descriptor, gpus)
    end = time.monotonic() + seconds
    best = _slots(descriptor, header, gpus, end)
    last = best
    # Read one after the other, memory that went from one process to another would count twice: two looks that agree
    # show one moment. Where the container does not hold still the least is the nearest.
    for _ in range(_LOOKS):
        try:
            again = _slots(descriptor, header, gpus, end)
        except FormatError:
            break
        best = min(best, again, key=lambda found: _sum(found[0]))
        if [(slot.index, slot.memory) for slot in again[0]] == [(slot.index, slot.memory) for slot in last[0]]:
            best = again
            break
        last = again
    return Region(header, tuple(best[0]), best[1])


def _sum(slots: list[RegionSlot]) -> int:
    return sum(sum(slot.memory) for slot in slots)


def _slots(descriptor: int, header: RegionHeader, gpus: int, end: float) -> tuple[list[RegionSlot], int]:
    """The slots of living processes, and how many are damaged. Raises FormatError when it takes longer than ``end``."""
    slots = []
    damaged = 0
    for index in range(header.high):
        if time.monotonic() > end:
            raise FormatError("region", f"slot {index} of {header.high}", "not read in time")
        try:
            slot = _slot(descriptor, index, gpus, end)
        except FormatError:
            damaged += 1
            continue
        if slot is not None:
            slots.append(slot)
    return slots, damaged


def read_header(descriptor: int, gpus: int = MAX_GPUS) -> RegionHeader:
    """The first page alone. Raises FormatError, OSError."""
    content = os.pread(descriptor, PAGE, 0)
    if len(content) != PAGE:
        raise FormatError("region", "header", f"only {len(content)} bytes")
    magic, version, page, slots, high, unknown = HEADER.unpack_from(content)
    if magic == 0 and not any(content):
        return RegionHeader(0, False, (0,) * gpus, (0,) * gpus, (0,) * gpus, ((0, 0),) * NOTES)
    if (magic, version, page, slots) != (MAGIC, VERSION, PAGE, SLOTS) or high > SLOTS:
        raise FormatError("region", "header", f"magic {magic:#x}, version {version}, {slots} slots, {high} used")
    return RegionHeader(
        high,
        bool(unknown),
        _QUADS.unpack_from(content, OWN_MEMORY)[:gpus],
        _WORDS.unpack_from(content, OWN_CAP)[:gpus],
        _WORDS.unpack_from(content, OWN_WEIGHT)[:gpus],
        tuple((count, last) for count, last, _ in (_NOTE.unpack_from(content, NOTE + 16 * i) for i in range(NOTES))),
    )


def is_alive(descriptor: int, index: int) -> bool:
    """Whether another process holds the lock of slot ``index``. Raises OSError."""
    wanted = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCKS + index, 1, 0)
    answer = fcntl.fcntl(descriptor, F_OFD_GETLK, wanted)
    kind: int = FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK


def set_own(descriptor: int, gpu: int, memory: int | None, cap: int | None, weight: int | None) -> None:
    """Put the container's own, lower limits into the header; None leaves one as it is. Raises OSError."""
    if not 0 <= gpu < MAX_GPUS:
        raise ValueError(f"GPU {gpu} is not in a region")
    for value, offset, form in ((memory, OWN_MEMORY, "<Q"), (cap, OWN_CAP, "<I"), (weight, OWN_WEIGHT, "<I")):
        if value is not None:
            content = struct.pack(form, value)
            os.pwrite(descriptor, content, offset + gpu * len(content))


def channels(descriptor: int, index: int, end: float = float("inf")) -> tuple[RegionChannel, ...]:
    """The compute channels that slot ``index`` publishes now; () when the list does not hold still, or until ``end``.

    Raises FormatError, OSError.
    """
    offset = PAGE * (1 + index) + CHANNEL_VERSION
    size = SLOT_USED_BYTES - CHANNEL_VERSION
    for _ in range(_TRIES):
        if time.monotonic() > end:
            break
        content = os.pread(descriptor, size, offset)
        if len(content) != size:
            raise FormatError("region", f"slot {index}", "cut short")
        version, count = struct.unpack_from("<II", content)
        if version % 2 == 0 and os.pread(descriptor, 4, offset) == content[:4]:
            if count > MAX_CHANNELS:
                raise FormatError("region", f"slot {index}", f"{count} channels")
            return tuple(RegionChannel(*_CHANNEL.unpack_from(content, 8 + CHANNEL_SIZE * i)) for i in range(count))
        os.sched_yield()
    return ()


def _slot(descriptor: int, index: int, gpus: int, end: float) -> RegionSlot | None:
    """A slot that is used and alive, or None."""
    content = os.pread(descriptor, CHANNEL_VERSION, PAGE * (1 + index))
    if len(content) != CHANNEL_VERSION:
        raise FormatError("region", f"slot {index}", "cut short")
    state, _, namespace, pid, threads_cap, start_time, name = _SLOT.unpack_from(content)
    if state != _USED or not is_alive(descriptor, index):
        return None
    memory = _QUADS.unpack_from(content, MEMORY)[:gpus]
    pending = _QUADS.unpack_from(content, PENDING)[:gpus]
    managed = _QUADS.unpack_from(content, MANAGED)[:gpus]
    if max((*memory, *pending, *managed), default=0) > PLAUSIBLE:
        raise FormatError("region", f"slot {index}", "more memory than there is")
    return RegionSlot(
        index,
        pid,
        namespace,
        start_time,
        printable(name),
        bool(threads_cap),
        memory,
        pending,
        managed,
        _WORDS.unpack_from(content, GROUPS)[:gpus],
        _QUADS.unpack_from(content, FROZEN)[:gpus],
        channels(descriptor, index, end),
    )


def printable(name: bytes) -> str:
    """A tenant's text up to its NUL, fit for a terminal."""
    text = name.partition(b"\0")[0].decode("ascii", "replace")
    return "".join(char if " " <= char <= "~" else "?" for char in text)
