"""Writes small ELF shared objects: valid, loadable, empty.

The libraries of a simulated driver need a SONAME, NEEDED entries and sometimes an ABI note, and nothing else. Writing
them here needs no compiler on the user's machine, and serves 32-bit and foreign architectures the same way, which
patching a compiled template cannot (its class and machine are in every structure). The real ldconfig, the real dynamic
loader and pyelftools accept the result; tests/nvc/sim/test_elfwriter.py holds them to it.

Layout and constants: System V ABI, gABI chapters 4 and 5; elf.h.
"""

from __future__ import annotations

import struct

from nvc.base.record import Record

EM_386, EM_ARM, EM_X86_64, EM_AARCH64 = 3, 40, 62, 183
_ET_DYN, _PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_GNU_STACK = 3, 1, 2, 4, 0x6474E551
_SHT_STRTAB, _SHT_HASH, _SHT_DYNAMIC, _SHT_NOTE, _SHT_DYNSYM = 3, 5, 6, 7, 11
_SHF_WRITE, _SHF_ALLOC = 1, 2
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 1, 4, 5, 6, 10, 11, 14


class Target(Record):
    """An architecture. page: largest page size, bytes, by which segments are aligned."""

    bits: int
    machine: int
    page: int
    flags: int = 0


X86_64 = Target(64, EM_X86_64, 0x1000)
I386 = Target(32, EM_386, 0x1000)
AARCH64 = Target(64, EM_AARCH64, 0x10000)
#: EF_ARM_EABI_VER5 | EF_ARM_ABI_FLOAT_HARD: ldconfig files it under "hard-float".
ARMHF = Target(32, EM_ARM, 0x10000, 0x05000400)


class _Section:
    def __init__(self, name: str, kind: int, flags: int, data: bytes, *, link: str = "", info: int = 0, entry: int = 0):
        self.name, self.kind, self.flags, self.data = name, kind, flags, data
        self.link, self.info, self.entry = link, info, entry
        self.offset = self.address = 0


def abi_note(kernel: tuple[int, int, int]) -> bytes:
    """A .note.ABI-tag: this object needs Linux ``kernel`` (LSB core specification; glibc csu/abi-note.c)."""
    return struct.pack("<III4sIIII", 4, 16, 1, b"GNU\0", 0, *kernel)


def shared_object(
    target: Target, soname: str, *, needed: tuple[str, ...] = (), kernel: tuple[int, int, int] | None = None
) -> bytes:
    """A little-endian shared object called ``soname`` that needs ``needed``.

    kernel: the version its ABI note asks for; None: no note.
    """
    wide = target.bits == 64
    word = 8 if wide else 4
    strings = b"\0"
    places = []
    for text in (soname, *needed):
        places.append(len(strings))
        strings += text.encode() + b"\0"
    sections = [
        _Section(".dynsym", _SHT_DYNSYM, _SHF_ALLOC, bytes(24 if wide else 16), link=".dynstr", info=1, entry=3 * word),
        # One bucket, one (the null) symbol: every look-up ends at once.
        _Section(".hash", _SHT_HASH, _SHF_ALLOC, struct.pack("<4I", 1, 1, 0, 0), link=".dynsym", entry=4),
        _Section(".dynstr", _SHT_STRTAB, _SHF_ALLOC, strings),
        _Section(".dynamic", _SHT_DYNAMIC, _SHF_ALLOC | _SHF_WRITE, b"", link=".dynstr", entry=2 * word),
    ]
    sections[0].entry = 24 if wide else 16
    if kernel is not None:
        sections.insert(0, _Section(".note.ABI-tag", _SHT_NOTE, _SHF_ALLOC, abi_note(kernel)))
    by_name = {section.name: section for section in sections}
    segments = 5 if kernel is not None else 4
    offset = (64 + 56 * segments) if wide else (52 + 32 * segments)
    for section in sections:
        offset = -(-offset // 8) * 8
        # The loader writes into .dynamic, so it lies in a segment of its own, one page further in memory.
        section.offset = offset
        section.address = offset + (target.page if section.name == ".dynamic" else 0)
        offset += len(section.data)
    dynamic = by_name[".dynamic"]
    tags = [
        (_DT_SONAME, places[0]),
        *((_DT_NEEDED, place) for place in places[1:]),
        (_DT_HASH, by_name[".hash"].address),
        (_DT_STRTAB, by_name[".dynstr"].address),
        (_DT_SYMTAB, by_name[".dynsym"].address),
        (_DT_STRSZ, len(strings)),
        (_DT_SYMENT, by_name[".dynsym"].entry),
        (0, 0),
    ]
    dynamic.data = b"".join(struct.pack("<QQ" if wide else "<II", *tag) for tag in tags)
    return _assemble(target, sections, dynamic, by_name.get(".note.ABI-tag"))


def _assemble(target: Target, sections: list[_Section], dynamic: _Section, note: _Section | None) -> bytes:
    wide = target.bits == 64
    headers = [
        # type, flags (4 read, 2 write), offset, address, size, alignment
        (_PT_LOAD, 4, 0, 0, dynamic.offset, target.page),
        (_PT_LOAD, 6, dynamic.offset, dynamic.address, len(dynamic.data), target.page),
        (_PT_DYNAMIC, 6, dynamic.offset, dynamic.address, len(dynamic.data), 8),
        # Without this the loader believes that the library wants an executable stack.
        (_PT_GNU_STACK, 6, 0, 0, 0, 16),
    ]
    if note is not None:
        headers.append((_PT_NOTE, 4, note.offset, note.address, len(note.data), 4))
    # Section names lie behind everything that is loaded, the section headers behind them.
    names = b"\0"
    name_places = []
    for section in [*sections, _Section(".shstrtab", _SHT_STRTAB, 0, b"")]:
        name_places.append(len(names))
        names += section.name.encode() + b"\0"
    strtab = _Section(".shstrtab", _SHT_STRTAB, 0, names)
    strtab.offset = dynamic.offset + len(dynamic.data)
    table = -(-(strtab.offset + len(names)) // 8) * 8

    ident = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
    form = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
    sizes = (64, 56, 64) if wide else (52, 32, 40)
    count = len(sections) + 2
    image = bytearray(ident)
    image += struct.pack(
        form, _ET_DYN, target.machine, 1, 0, sizes[0], table, target.flags, sizes[0], sizes[1], len(headers), sizes[2],
        count, count - 1,
    )  # fmt: skip
    for kind, flags, offset, address, size, align in headers:
        if wide:
            image += struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, align)
        else:
            image += struct.pack("<IIIIIIII", kind, offset, address, address, size, size, flags, align)
    indices = {section.name: number for number, section in enumerate(sections, 1)}
    rows = [bytes(sizes[2])]
    for section, name in zip([*sections, strtab], name_places, strict=True):
        image += bytes(section.offset - len(image)) + section.data
        align = 1 if section.kind == _SHT_STRTAB else 4 if section.kind == _SHT_NOTE else 8
        values = (name, section.kind, section.flags, section.address, section.offset, len(section.data))
        links = (indices.get(section.link, 0), section.info, align, section.entry)
        rows.append(struct.pack("<IIQQQQIIQQ" if wide else "<10I", *values, *links))
    image += bytes(table - len(image)) + b"".join(rows)
    return bytes(image)
