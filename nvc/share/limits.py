"""The limits file (native/shim/share.h): what a container may use, written by the host, read-only in the container.

Changed in place, so that a container that has the file mounted sees it at once. Readers take a copy and look at the
generation again: it is odd while a writer is at work, and a writer that died leaves it odd until the next one.
"""

from __future__ import annotations

import os
import struct
import time
from binascii import crc32

from nvc.base.record import Record
from nvc.formats import FormatError
from nvc.share.model import CAP_WHOLE, PRIORITIES, SERVICE, ResolvedGpu

MAGIC, VERSION, SIZE = 0x4C43564E, 1, 8192
MAX_GPUS, MAX_NODES = 32, 64
#: Where it is in a container, and which variable names it for a program that runs without one.
PATH, VARIABLE = "/run/nvc-share/limits", "NVC_SHIM_LIMITS"
#: Kinds of nodes: enum rm_node of native/rm/rm.h.
NODE_CONTROL, NODE_GPU, NODE_UVM = 1, 2, 3

#: limits.flags, limits_gpu.flags.
PAUSED, GRAPHICS = 1, 2
OVERSUBSCRIBE = 1

#: magic, version, size, generation, checksum.
HEAD = struct.Struct("<5I")
GENERATION, CHECKSUM = 12, 16
#: Where the checksum begins to count: flags, gpu_count, node_count, period, driver, container.
BODY = 64
_BODY = struct.Struct("<4I32s64s")
#: uuid, memory, cap, weight, priority, flags, latency, idle, request, most. A service is of high priority with a
#: latency: supervisors and libraries that know no services give it that.
GPUS, GPU_SIZE = 192, 64
_GPU = struct.Struct("<16sQ6I2Q")
#: enum limits_priority.
_PRIORITIES = PRIORITIES[: PRIORITIES.index(SERVICE)]
#: kind, minor, device, inode.
NODES, NODE_SIZE = 2240, 32
_NODE = struct.Struct("<IIQQ8x")

_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
#: How often a reader tries again during a write, for a second in all: a write is five short calls.
_TRIES = 1000


class LimitsNode(Record):
    """How a node of the driver is recognised by fstat.

    kind: NODE_*. minor: of the GPU. inode 0: a character device with st_rdev ``device``; else a file with this st_dev
    and st_ino (the simulated machine).
    """

    kind: int
    minor: int
    device: int
    inode: int = 0


class Limits(Record):
    """The content of the file.

    gpus: the file has no ``minor``: read back it is -1. period: microseconds of one on-and-off of a cap,
    0 for the library's own. driver, container: texts for messages and look-ups. graphics: in a tenant's plan alone,
    whether the guard lets objects of graphics be made (``nvc.agent.settings``).
    """

    gpus: tuple[ResolvedGpu, ...]
    nodes: tuple[LimitsNode, ...] = ()
    driver: str = ""
    container: str = ""
    period: int = 0
    paused: bool = False
    graphics: bool = False


def with_shares(limits: Limits, other: Limits) -> Limits:
    """``limits`` with the shares and the pause of ``other``, of the same GPUs in any order. Raises ValueError.

    What is no share stays, graphics too: a tenant keeps them as they were when its first container came.
    """
    found = {gpu.uuid: gpu for gpu in other.gpus}
    if found.keys() != {gpu.uuid for gpu in limits.gpus}:
        raise ValueError("its GPUs are not those that it was started with")
    return limits.replace(gpus=tuple(found[gpu.uuid] for gpu in limits.gpus), paused=other.paused)


def encode(limits: Limits, generation: int = 0) -> bytes:
    """The SIZE bytes of a file. Raises ValueError for more GPUs or nodes, or longer texts, than there is room for."""
    if len(limits.gpus) > MAX_GPUS or len(limits.nodes) > MAX_NODES:
        raise ValueError(f"{len(limits.gpus)} GPUs and {len(limits.nodes)} nodes do not fit into a limits file")
    content = bytearray(SIZE)
    _BODY.pack_into(
        content,
        BODY,
        (PAUSED if limits.paused else 0) | (GRAPHICS if limits.graphics else 0),
        len(limits.gpus),
        len(limits.nodes),
        limits.period,
        _text(limits.driver, 32),
        _text(limits.container, 64),
    )
    for index, gpu in enumerate(limits.gpus):
        flags = OVERSUBSCRIBE if gpu.oversubscribe else 0
        priority = _PRIORITIES.index("high" if gpu.priority == SERVICE else gpu.priority)
        numbers = (gpu.memory, gpu.cap, gpu.weight, priority, flags, gpu.latency, gpu.idle, gpu.request, gpu.most)
        _GPU.pack_into(content, GPUS + GPU_SIZE * index, uuid_bytes(gpu.uuid), *numbers)
    for index, node in enumerate(limits.nodes):
        _NODE.pack_into(content, NODES + NODE_SIZE * index, node.kind, node.minor, node.device, node.inode)
    HEAD.pack_into(content, 0, MAGIC, VERSION, SIZE, generation, crc32(memoryview(content)[BODY:]))
    return bytes(content)


def decode(content: bytes) -> Limits:
    """What a whole, unchanging copy of the file says. Raises FormatError."""
    if len(content) != SIZE:
        raise FormatError("limits", "size", f"{len(content)} bytes instead of {SIZE}")
    magic, version, size, _, checksum = HEAD.unpack_from(content)
    if (magic, version, size) != (MAGIC, VERSION, SIZE):
        raise FormatError("limits", "head", f"magic {magic:#x}, version {version}, size {size}")
    if checksum != crc32(memoryview(content)[BODY:]):
        raise FormatError("limits", "head", "the checksum does not fit")
    flags, gpu_count, node_count, period, driver, container = _BODY.unpack_from(content, BODY)
    if gpu_count > MAX_GPUS or node_count > MAX_NODES:
        raise FormatError("limits", "counts", f"{gpu_count} GPUs, {node_count} nodes")
    nodes = tuple(LimitsNode(*_NODE.unpack_from(content, NODES + NODE_SIZE * index)) for index in range(node_count))
    gpus = tuple(_gpu(content, index) for index in range(gpu_count))
    texts = _string(driver), _string(container)
    return Limits(gpus, nodes, *texts, period, bool(flags & PAUSED), bool(flags & GRAPHICS))


def read(descriptor: int) -> Limits:
    """What the file says now. Raises FormatError, also when a writer does not come to its end; OSError."""
    return decode(copy(descriptor))


def copy(descriptor: int) -> bytes:
    """Of the file as it is now, while nothing writes it. Raises as ``read``."""
    for attempt in range(_TRIES):
        content = os.pread(descriptor, SIZE + 1, 0)
        if len(content) != SIZE:
            break
        (generation,) = struct.unpack_from("<I", content, GENERATION)
        if generation % 2 == 0 and os.pread(descriptor, 4, GENERATION) == content[GENERATION : GENERATION + 4]:
            break
        # After so many tries the writer is one that a busy machine does not schedule.
        time.sleep(0.002 if attempt >= _TRIES // 2 else 0)
    else:
        raise FormatError("limits", "generation", "a write began and did not end")
    return content


def says_same(content: bytes, other: bytes) -> bool:
    """Whether two copies say the same, for sure: equal values may be written in several ways."""
    return content[:GENERATION] == other[:GENERATION] and content[CHECKSUM:] == other[CHECKSUM:]


def write(descriptor: int, limits: Limits) -> int:
    """Change the file in place; the new generation. Writers must hold the entry's lock (``nvc.share.store``).

    Raises OSError, ValueError; a file that cannot be written to its end keeps an odd generation, which readers treat
    as no limits at all, so nothing is granted by half a write.
    """
    current = os.pread(descriptor, HEAD.size, 0)
    generation = struct.unpack_from("<I", current, GENERATION)[0] if len(current) == HEAD.size else 0
    odd = (generation | 1) & 0xFFFFFFFF
    even = (odd + 1) & 0xFFFFFFFF
    content = encode(limits, odd)
    _put(descriptor, content[GENERATION : GENERATION + 4], GENERATION)
    _put(descriptor, content[:GENERATION], 0)
    _put(descriptor, content[BODY:], BODY)
    _put(descriptor, content[CHECKSUM : CHECKSUM + 4], CHECKSUM)
    _put(descriptor, struct.pack("<I", even), GENERATION)
    return even


def _put(descriptor: int, content: bytes, offset: int) -> None:
    if os.pwrite(descriptor, content, offset) != len(content):
        raise OSError(f"limits: wrote only a part of {len(content)} bytes")


def uuid_bytes(uuid: str) -> bytes:
    """The 16 bytes of "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". Raises ValueError."""
    digits = uuid.removeprefix("GPU-").replace("-", "")
    if len(digits) != 32 or not _HEXADECIMAL.issuperset(digits) or not uuid.startswith("GPU-"):
        raise ValueError(f"{uuid[:48]!r} is not the UUID of a GPU")
    return bytes.fromhex(digits)


def uuid_text(content: bytes) -> str:
    """The UUID of a GPU as the driver prints it."""
    text = content.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _gpu(content: bytes, index: int) -> ResolvedGpu:
    uuid, memory, cap, weight, priority, flags, latency, idle, request, most = _GPU.unpack_from(
        content, GPUS + GPU_SIZE * index
    )
    if priority >= len(_PRIORITIES) or cap > CAP_WHOLE or (latency and _PRIORITIES[priority] != "high"):
        raise FormatError("limits", f"GPU {index}", f"priority {priority}, cap {cap}, latency {latency}")
    if (request or most) and not 0 < request <= memory <= most:
        raise FormatError("limits", f"GPU {index}", f"{memory} bytes of a range from {request} to {most}")
    return ResolvedGpu(
        uuid_text(uuid),
        -1,
        memory,
        cap or CAP_WHOLE,
        weight,
        SERVICE if latency else _PRIORITIES[priority],
        bool(flags & OVERSUBSCRIBE),
        latency,
        request,
        most,
        idle,
    )


def _text(text: str, room: int) -> bytes:
    content = text.encode("utf-8", "replace")
    if len(content) >= room or b"\0" in content:
        raise ValueError(f"{text!r} does not fit into {room} bytes")
    return content


def _string(content: bytes) -> str:
    text = content.partition(b"\0")[0].decode("ascii", "replace")
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)
