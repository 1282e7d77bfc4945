"""Writes loader caches, byte by byte after glibc's elf/cache.c, for layouts and byte orders no ldconfig here makes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

#: name, path, flags, hwcap
Entry = tuple[str, str, int, int]


def new(
    entries: Sequence[Entry],
    *,
    order: str = "<",
    endian: int | None = None,
    generator: bytes = b"",
    hwcaps: Sequence[str] = (),
    before: bytes = b"",
) -> bytes:
    """The new layout. before: an old table in front, already padded. endian: the header's mark, right by default."""
    texts, offsets = bytearray(), {}
    start = 48 + 24 * len(entries)
    for text in [*(word for name, path, _, _ in entries for word in (name, path)), *hwcaps]:
        if text not in offsets:
            offsets[text] = start + len(texts)
            texts += text.encode() + b"\0"
    rows = b"".join(
        struct.pack(order + "iIIIQ", flags, offsets[name], offsets[path], 0, hwcap)
        for name, path, flags, hwcap in entries
    )
    mark = endian if endian is not None else 2 if order == "<" else 3
    at, extension = 0, b""
    if generator or hwcaps:
        at = -(-(len(before) + start + len(texts)) // 4) * 4
        indices = struct.pack(f"{order}{len(hwcaps)}I", *(offsets[text] for text in hwcaps))
        extension = struct.pack(order + "2I", 0xEAA42174, 2)
        extension += struct.pack(order + "4I", 0, 0, at + 40, len(generator))
        extension += struct.pack(order + "4I", 1, 0, at + 40 + len(generator), len(indices))
        extension += generator + indices
    header = b"glibc-ld.so.cache1.1" + struct.pack(order + "IIIIIII", len(entries), len(texts), 0, at, 0, 0, 0)
    header = header[:28] + bytes([mark]) + header[29:]
    body = before + header + rows + texts
    return body + b"\0" * (at - len(body)) + extension if at else body


def old(entries: Sequence[Entry], *, order: str = "<") -> bytes:
    """The old layout: 12-byte rows, texts counted from the end of the rows."""
    texts, rows = bytearray(), b""
    for name, path, flags, _ in entries:
        key = len(texts)
        texts += name.encode() + b"\0"
        rows += struct.pack(order + "iII", flags, key, len(texts))
        texts += path.encode() + b"\0"
    return b"ld.so-1.7.0\0" + struct.pack(order + "I", len(entries)) + rows + bytes(texts)


def both(entries: Sequence[Entry], *, alignment: int = 8, generator: bytes = b"") -> bytes:
    """An old table that the new one follows."""
    front = b"ld.so-1.7.0\0" + struct.pack("<I", len(entries))
    front += b"".join(struct.pack("<iII", flags, 0, 0) for _, _, flags, _ in entries)
    front += b"\0" * (-len(front) % alignment)
    return new(entries, before=front, generator=generator)
