"""The dynamic loader's cache, /etc/ld.so.cache, in every layout that glibc has written.

Source: glibc ``sysdeps/generic/dl-cache.h`` (layouts), ``elf/cache.c`` (the writer), ``sysdeps/generic/ldconfig.h``
(flags). Three layouts exist: old (until 2.1), new, and an old table that the new one follows ("compat"). Offsets of
the new table count from its own header; those of the old table from the end of its entries. The cache is written by
the host's ldconfig, but may come out of a driver container or a half-finished upgrade: every number is checked
against the size of the file.
"""

from __future__ import annotations

from struct import Struct

from nvc.base.record import Record
from nvc.formats import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Literal

OLD_MAGIC = b"ld.so-1.7.0"
NEW_MAGIC = b"glibc-ld.so.cache"
NEW_VERSION = b"1.1"
EXTENSION_MAGIC = 0xEAA42174
EXTENSION_GENERATOR, EXTENSION_HWCAPS = 0, 1

#: A big desktop's cache has 5,000 entries and half a megabyte.
MAX_SIZE = 32 << 20
MAX_ENTRIES = 1 << 17
MAX_STRING = 4096

#: struct cache_file_new.flags, the two bits of byte order.
_ENDIAN_MASK, _ENDIAN_UNSET, _ENDIAN_LITTLE, _ENDIAN_BIG = 3, 0, 2, 3
#: Entry.hwcap: DL_CACHE_HWCAP_EXTENSION; the low half is then an index into the hwcaps section.
HWCAP_EXTENSION = 1 << 62

TYPE_MASK, ARCH_MASK = 0x00FF, 0xFF00
#: Low bit of the type: set for ELF (1), ELF of libc5 (2 has it not) and of libc6 (3).
TYPE_ELF = 0x01

_OLD_HEADER, _NEW_HEADER = 16, 48
_OLD_ENTRY, _NEW_ENTRY = 12, 24


class CacheArch(Record):
    """A value of FLAG_REQUIRED_MASK: which ABI a cached library belongs to."""

    flag: int
    name: str


ARCHES = (
    CacheArch(0x0000, "i386 or generic"),
    CacheArch(0x0100, "sparc64"),
    CacheArch(0x0200, "ia64"),
    CacheArch(0x0300, "x86-64"),
    CacheArch(0x0400, "s390x"),
    CacheArch(0x0500, "ppc64"),
    CacheArch(0x0600, "mips n32"),
    CacheArch(0x0700, "mips n64"),
    CacheArch(0x0800, "x32"),
    CacheArch(0x0900, "arm hard-float"),
    CacheArch(0x0A00, "aarch64"),
    CacheArch(0x0B00, "arm soft-float"),
    CacheArch(0x0C00, "mips o32 nan2008"),
    CacheArch(0x0D00, "mips n32 nan2008"),
    CacheArch(0x0E00, "mips n64 nan2008"),
    CacheArch(0x0F00, "riscv soft-float"),
    CacheArch(0x1000, "riscv double-float"),
    CacheArch(0x1100, "loongarch soft-float"),
    CacheArch(0x1200, "loongarch double-float"),
)


class CacheEntry(Record):
    """One library. name: the SONAME it is found by; path: the file; hwcaps: its glibc-hwcaps directory, or ""."""

    name: str
    path: str
    flags: int
    hwcap: int = 0
    hwcaps: str = ""

    @property
    def arch(self) -> int:
        """The ABI, one of ``ARCHES``' flags."""
        return self.flags & ARCH_MASK

    @property
    def is_elf(self) -> bool:
        return bool(self.flags & TYPE_ELF)


class LoaderCache(Record):
    """A parsed cache. layout: "old", "new" or "compat"; generator: the ldconfig that wrote it, where it is recorded."""

    entries: tuple[CacheEntry, ...]
    layout: str
    generator: str = ""


def arch_name(flags: int) -> str:
    """Words for the ABI bits of an entry's flags, for messages."""
    for arch in ARCHES:
        if arch.flag == flags & ARCH_MASK:
            return arch.name
    return f"unknown architecture {flags & ARCH_MASK:#06x}"


def parse(data: bytes, names: Collection[bytes] | None = None) -> LoaderCache:
    """Parse a whole cache file. Raises FormatError, naming the place, for anything that is not one.

    names: entries are made of these libraries only, each up to its first ".so" and with it; None: of all. A desktop has
    5,000 entries, and most of the time goes into making them.
    """
    if len(data) > MAX_SIZE:
        raise _error("header", f"{len(data)} bytes are more than the {MAX_SIZE} a cache may have")
    if data.startswith(OLD_MAGIC):
        return _parse_old(data, names)
    if data.startswith(NEW_MAGIC):
        return _parse_new(data, 0, "new", names)
    raise _error("header", "neither magic is there")


def _parse_old(data: bytes, names: Collection[bytes] | None) -> LoaderCache:
    if len(data) < _OLD_HEADER:
        raise _error("old header", f"cut short after {len(data)} bytes")
    order, count = _old_count(data)
    end = _OLD_HEADER + count * _OLD_ENTRY
    # The new table is aligned for its 64-bit members: to 8, or to 4 when a 32-bit ldconfig wrote it.
    for alignment in (8, 4):
        start = -(-end // alignment) * alignment
        if data.startswith(NEW_MAGIC, start):
            return _parse_new(data, start, "compat", names)
    row, strings = Struct(order + "iII"), _Strings(data[end:])
    entries = tuple(
        CacheEntry(strings.at(key, f"entry {index}, name"), strings.at(value, f"entry {index}, path"), flags)
        for index, (flags, key, value) in enumerate(row.iter_unpack(data[_OLD_HEADER:end]))
        if names is None or strings.library(key) in names
    )
    return LoaderCache(entries, "old")


def _old_count(data: bytes) -> tuple[str, int]:
    """Byte order and number of entries. The old header has no byte order: the one that fits the file is used."""
    room = min((len(data) - _OLD_HEADER) // _OLD_ENTRY, MAX_ENTRIES)
    for order in "<>":
        (count,) = Struct(order + "I").unpack_from(data, 12)
        if count <= room:
            return order, count
    raise _error("old header", f"room for {room} entries, and it says more")


def _parse_new(data: bytes, start: int, layout: str, names: Collection[bytes] | None) -> LoaderCache:
    table = data[start:]
    if len(table) < _NEW_HEADER:
        raise _error("new header", f"cut short after {len(table)} bytes")
    if not table.startswith(NEW_VERSION, len(NEW_MAGIC)):
        raise _error("new header", f"version {table[17:20]!r} is not {NEW_VERSION!r}")
    order = _byte_order(table)
    count, text_size, _, extension = Struct(order + "4I").unpack_from(table, 20)
    end = _NEW_HEADER + count * _NEW_ENTRY
    if count > MAX_ENTRIES or end + text_size > len(table):
        raise _error("new header", f"{count} entries and {text_size} bytes of names do not fit {len(table)} bytes")
    generator = ""
    hwcaps: tuple[str, ...] = ()
    strings = _Strings(table)
    # The extension's offset, alone, counts from the start of the file (cache_extension_load()).
    if extension:
        generator, hwcaps = _extensions(data, strings, order, extension)
    entries = []
    row = Struct(order + "iIIIQ")
    for index, (flags, key, value, _osversion, hwcap) in enumerate(row.iter_unpack(table[_NEW_HEADER:end])):
        if names is not None and strings.library(key) not in names:
            continue
        place = f"entry {index}"
        name, path = strings.at(key, place + ", name"), strings.at(value, place + ", path")
        entries.append(CacheEntry(name, path, flags, hwcap, _hwcaps(hwcap, hwcaps, place)))
    return LoaderCache(tuple(entries), layout, generator)


def _byte_order(table: bytes) -> Literal["<", ">"]:
    said = table[28] & _ENDIAN_MASK
    if said == _ENDIAN_LITTLE:
        return "<"
    if said == _ENDIAN_BIG:
        return ">"
    if said != _ENDIAN_UNSET:
        raise _error("new header", "byte order is marked invalid")
    # Before glibc 2.33 the order is not recorded. The wrong one makes a small count huge.
    (count,) = Struct("<I").unpack_from(table, 20)
    return "<" if count <= MAX_ENTRIES else ">"


def _extensions(data: bytes, strings: _Strings, order: str, offset: int) -> tuple[str, tuple[str, ...]]:
    """Generator text and glibc-hwcaps names (``struct cache_extension`` and its sections)."""
    if offset % 4 or offset + 8 > len(data):
        raise _error("extension header", f"offset {offset} is not in the file")
    magic, count = Struct(order + "2I").unpack_from(data, offset)
    if magic != EXTENSION_MAGIC:
        raise _error("extension header", f"magic {magic:#x} is not {EXTENSION_MAGIC:#x}")
    sections = data[offset + 8 : offset + 8 + count * 16]
    if count * 16 != len(sections):
        raise _error("extension header", f"{count} sections do not fit the file")
    generator = ""
    hwcaps: tuple[str, ...] = ()
    for index, (tag, _flags, at, size) in enumerate(Struct(order + "4I").iter_unpack(sections)):
        if at + size > len(data):
            raise _error(f"extension section {index}", f"{size} bytes at {at} are not in the file")
        if tag == EXTENSION_GENERATOR:
            generator = _text(data[at : at + size])
        elif tag == EXTENSION_HWCAPS:
            hwcaps = _hwcaps_names(strings, data[at : at + size], order)
    return generator, hwcaps


def _hwcaps_names(strings: _Strings, section: bytes, order: str) -> tuple[str, ...]:
    if len(section) % 4:
        raise _error("hwcaps section", f"size {len(section)} is not a multiple of 4")
    return tuple(
        strings.at(offset, f"hwcaps name {index}")
        for index, (offset,) in enumerate(Struct(order + "I").iter_unpack(section))
    )


def _hwcaps(hwcap: int, names: tuple[str, ...], place: str) -> str:
    if not hwcap & HWCAP_EXTENSION:
        return ""
    index = hwcap & 0xFFFFFFFF
    if index >= len(names):
        raise _error(place, f"hwcaps index {index} of {len(names)}")
    return names[index]


class _Strings:
    """The texts of one table. Many entries may point at one text, so that their sum is limited, too."""

    def __init__(self, table: bytes) -> None:
        self._table = table
        self._left = MAX_SIZE

    def library(self, offset: int) -> bytes:
        """The text up to its first ".so" and with it; b"" where there is none."""
        table = self._table
        end = table.find(b"\0", offset, offset + MAX_STRING)
        found = table.find(b".so", offset, end)
        return table[offset : found + 3] if found >= 0 else b""

    def at(self, offset: int, place: str) -> str:
        end = self._table.find(b"\0", offset, offset + MAX_STRING)
        if end < 0:
            raise _error(place, f"no text at offset {offset}")
        self._left -= end - offset
        if self._left < 0:
            raise _error(place, f"the texts are longer than {MAX_SIZE} bytes together")
        return _text(self._table[offset:end])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _error(place: str, reason: str) -> FormatError:
    return FormatError("ld.so.cache", place, reason)
