"""The parts of an ELF file that discovery needs: class, machine, SONAME, NEEDED, the ABI note, a named section.

The file may be anything (a half-written upgrade, an image's library): whatever does not fit becomes a FormatError, and
the bytes that are read are limited, so that a crafted file keeps nothing busy. Layout and constants: System V ABI
(gABI), chapters 4 and 5; elf.h. Parsers of whole ELF files cost more to import than discovery takes.
"""

from __future__ import annotations

import struct

from nvc.base.record import Record
from nvc.formats import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO, TypeVar

    T = TypeVar("T")

#: A driver library is up to 100 MB, but its headers, dynamic section and string table are some 100 KB.
READ_LIMIT = 16 << 20
NEEDED_LIMIT = 1024

#: Elf_External_Note of .note.ABI-tag (glibc csu/abi-note.S): type 1, name "GNU", four words.
ABI_OS_LINUX = 0
_ABI_NOTE_TYPE, _ABI_NOTE_NAME = 1, b"GNU\0"

_MAGIC = b"\x7fELF"
_BITS = {1: 32, 2: 64}
_ORDERS = {1: "<", 2: ">"}
#: e_machine (elf.h): NVIDIA has drivers for some; the others are named in messages.
_MACHINES = {
    3: "EM_386",
    20: "EM_PPC",
    21: "EM_PPC64",
    22: "EM_S390",
    40: "EM_ARM",
    62: "EM_X86_64",
    183: "EM_AARCH64",
    243: "EM_RISCV",
}
_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_NOTE, _SHT_NOBITS = 7, 8
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME = 0, 1, 5, 10, 14
_IDENT = 16
#: After e_ident: e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize, e_phentsize, e_phnum,
#: e_shentsize, e_shnum, e_shstrndx.
_HEADER = {32: "HHIIIIIHHHHHH", 64: "HHIQQQIHHHHHH"}
#: Fields of a program header as (type, offset, address, size in the file), by position; of a section header as (name,
#: type, offset, size).
_SEGMENT = {32: ("IIIIIIII", (0, 1, 2, 4)), 64: ("IIQQQQQQ", (0, 2, 3, 5))}
_SECTION = {32: ("IIIIIIIIII", (0, 1, 4, 5)), 64: ("IIQQQQIIQQ", (0, 1, 4, 5))}
_TAG = {32: "iI", 64: "qQ"}
_NAME_LIMIT = 4096


class ElfHeader(Record):
    """bits: 32 or 64; machine: as <elf.h> spells it ("EM_X86_64"), a number in decimal where discovery knows none."""

    bits: int
    machine: str


class ElfDynamic(Record):
    """The dynamic section. soname is "" when there is none."""

    soname: str
    needed: tuple[str, ...]


class AbiTag(Record):
    """The ABI note: operating system (0 = Linux) and the oldest kernel it runs on."""

    system: int
    kernel: tuple[int, int, int]


def header(stream: BinaryIO) -> ElfHeader:
    """Class and machine. Raises FormatError if it is not an ELF file."""
    return _read(stream, "header", lambda file: ElfHeader(file.bits, file.machine))


def dynamic(stream: BinaryIO) -> ElfDynamic:
    """SONAME and NEEDED. Raises FormatError, also when there is no dynamic section."""
    return _read(stream, "dynamic section", _dynamic)


def abi_tag(stream: BinaryIO) -> AbiTag | None:
    """The note in .note.ABI-tag, or None when the section or the note is missing. Raises FormatError."""
    return _read(stream, "section .note.ABI-tag", _abi_tag)


def section(stream: BinaryIO, name: str, *, limit: int = 1 << 16) -> bytes | None:
    """The bytes of a named section, or None. Raises FormatError, also for one longer than ``limit``."""

    def find(file: _File) -> bytes | None:
        found = file.section(name)
        if found is None:
            return None
        kind, offset, size = found
        if size > limit:
            raise _error(f"section {name}", f"{size} bytes are more than {limit}")
        return b"" if kind == _SHT_NOBITS else file.at(offset, size)

    return _read(stream, f"section {name}", find)


def _read(stream: BinaryIO, place: str, ask: Callable[[_File], T]) -> T:
    try:
        return ask(_File(stream, place))
    except OSError as error:
        raise _error(place, (error.strerror or str(error)).lower()) from error
    except (struct.error, OverflowError, ValueError) as error:
        raise _error(place, str(error)) from error


class _File:
    """The header of an ELF file, and its parts by what the header says. place: for errors."""

    def __init__(self, stream: BinaryIO, place: str) -> None:
        self._stream, self._place, self._left = stream, place, READ_LIMIT
        ident = self.at(0, _IDENT)
        if ident[:4] != _MAGIC:
            raise _error(place, "not an ELF file")
        if ident[4] not in _BITS or ident[5] not in _ORDERS:
            raise _error(place, f"class {ident[4]} and byte order {ident[5]} are unknown")
        self.bits, self.order = _BITS[ident[4]], _ORDERS[ident[5]]
        layout = self.order + _HEADER[self.bits]
        fields = struct.unpack(layout, self.at(_IDENT, struct.calcsize(layout)))
        self.machine = _MACHINES.get(fields[1], str(fields[1]))
        self._segments, self._sections = (fields[4], fields[8], fields[9]), (fields[5], fields[10], fields[11])
        self._names = fields[12]

    def at(self, offset: int, size: int) -> bytes:
        """Bytes of the file. Raises FormatError where it is shorter, and after READ_LIMIT."""
        if size > self._left:
            raise _error(self._place, f"more than {READ_LIMIT} bytes would have to be read")
        self._left -= size
        self._stream.seek(offset)
        data = self._stream.read(size)
        if len(data) != size:
            raise _error(self._place, f"{size} bytes at {offset} are beyond the end of the file")
        return data

    def _table(self, table: tuple[int, int, int], rows: tuple[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
        offset, entry, count = table
        layout, wanted = self.order + rows[0], rows[1]
        if count and entry != struct.calcsize(layout):
            raise _error(self._place, f"entries of {entry} bytes")
        data = self.at(offset, entry * count) if count else b""
        return [tuple(fields[at] for at in wanted) for fields in struct.iter_unpack(layout, data)] if data else []

    def segments(self) -> list[tuple[int, ...]]:
        """(type, offset, address, size) of each."""
        return self._table(self._segments, _SEGMENT[self.bits])

    def section(self, name: str) -> tuple[int, int, int] | None:
        """(type, offset, size) of the first of that name."""
        sections = self._table(self._sections, _SECTION[self.bits])
        if not sections:
            return None
        if self._names >= len(sections):
            raise _error(self._place, f"section {self._names} of names is not there")
        _, _, offset, size = sections[self._names]
        names = self.at(offset, size)
        for start, kind, offset, size in sections:
            if _text(names, start) == name.encode():
                return kind, offset, size
        return None


def _text(table: bytes, start: int) -> bytes:
    end = table.find(b"\0", start, start + _NAME_LIMIT) if start < len(table) else -1
    if end < 0:
        raise ValueError(f"text {start} is outside of its table")
    return table[start:end]


def _dynamic(file: _File) -> ElfDynamic:
    segments = file.segments()
    found = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if found is None:
        raise _error("dynamic section", "there is none")
    layout = file.order + _TAG[file.bits]
    size = found[3] - found[3] % struct.calcsize(layout)
    single: dict[int, int] = {}
    needed: list[int] = []
    for tag, value in struct.iter_unpack(layout, file.at(found[1], size)):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            needed.append(value)
            if len(needed) > NEEDED_LIMIT:
                raise _error("dynamic section", f"more than {NEEDED_LIMIT} needed libraries")
        single.setdefault(tag, value)
    if not needed and _DT_SONAME not in single:
        return ElfDynamic("", ())
    table = file.at(_offset(segments, single.get(_DT_STRTAB, 0)), single.get(_DT_STRSZ, 0))
    soname = _text(table, single[_DT_SONAME]).decode("utf-8", "replace") if _DT_SONAME in single else ""
    return ElfDynamic(soname, tuple(_text(table, start).decode("utf-8", "replace") for start in needed))


def _offset(segments: list[tuple[int, ...]], address: int) -> int:
    """Where in the file is what is loaded at ``address``."""
    for kind, offset, start, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise _error("dynamic section", f"address {address:#x} is in no segment")


def _abi_tag(file: _File) -> AbiTag | None:
    found = file.section(".note.ABI-tag")
    if found is None or found[0] != _SHT_NOTE:
        return None
    data = file.at(found[1], found[2])
    while len(data) >= 12:
        name_size, size, kind = struct.unpack_from(file.order + "III", data)
        start = 12 + _padded(name_size)
        name, content = data[12 : 12 + name_size], data[start : start + size]
        if name == _ABI_NOTE_NAME and kind == _ABI_NOTE_TYPE:
            if len(content) < 16:
                raise _error("section .note.ABI-tag", f"{len(content)} bytes are not four words")
            system, *kernel = struct.unpack_from(file.order + "IIII", content)
            return AbiTag(system, (kernel[0], kernel[1], kernel[2]))
        data = data[start + _padded(size) :]
    return None


def _padded(size: int) -> int:
    return size + 3 & ~3


def _error(place: str, reason: str) -> FormatError:
    return FormatError("ELF", place, reason)
