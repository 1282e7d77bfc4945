"""Should a container use the CUDA forward-compatibility libraries that its image brings? Pure.

The reference mounted those files from the image over its library directory, which is how CVE-2024-0132 and
CVE-2025-23359 came about. Here nothing of an image is ever mounted: when the answer is yes, their directory comes first
when the loader cache is made. The rule is the newest one (libnvidia-container.md 5.7): the ELF note
``.note.cuda.fwd_compatibility`` decides, and without a note the driver's major version, compared as a number.
"""

from __future__ import annotations

import struct

from nvc.base.record import Record
from rpc.codec import CodecError, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NOTE_SECTION = b".note.cuda.fwd_compatibility"
_NOTE_OWNER = b"NVIDIA Corporation"
_SHT_NOTE = 7
_OFFSET_LIMIT = 1 << 40
_PIECE_LIMIT = 1 << 20


class CompatNote(Record):
    """What the note says: the CUDA version the library brings and the driver majors it runs on, () on a Tegra."""

    cuda: str
    drivers: tuple[int, ...]


class CompatLibrary(Record):
    """The libcuda of an image's compat directory.

    directory: container path, links resolved. version: what follows ``libcuda.so.`` in its name.
    """

    directory: str
    version: str
    note: CompatNote | None = None


def choose(names: list[str]) -> str:
    """The version of the one ``libcuda.so.*.*`` among the names of a compat directory, or "" when not exactly one."""
    found = [name[len("libcuda.so.") :] for name in names if name.startswith("libcuda.so.")]
    versions = [version for version in found if "." in version]
    return versions[0] if len(versions) == 1 else ""


def usable(library: CompatLibrary, driver: str, cuda: str = "") -> bool:
    """True if the container should prefer ``library``, on a host with these versions ("" when not known)."""
    theirs, ours = _numbers(library.version), _numbers(driver)
    if library.note is not None:
        if not ours or not theirs:
            return bool(cuda) and _numbers(library.note.cuda) > _numbers(cuda)
        return ours[0] in library.note.drivers and theirs > ours
    # Of a CUDA version, the note alone could tell.
    return not cuda and bool(ours and theirs) and ours[0] < theirs[0]


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def read_note(read: Callable[[int, int], bytes]) -> CompatNote | None:
    """The compatibility note of an ELF file, or None when it has none that can be read.

    read: (offset, size) to the file's bytes there, fewer at its end. An image's file is untrusted: sizes are capped,
    every offset is checked, and whatever does not fit is the same as no note.
    """

    def exactly(offset: int, size: int) -> bytes:
        if offset > _OFFSET_LIMIT or size > _PIECE_LIMIT:
            raise ValueError("larger than any library")
        data = read(offset, size)
        if len(data) != size:
            raise ValueError("outside of the file")
        return data

    try:
        section = _note_section(exactly)
        return None if section is None else _parse_note(*section)
    except (struct.error, ValueError):
        return None


def _note_section(read: Callable[[int, int], bytes]) -> tuple[bytes, str, int] | None:
    """Content, byte order and alignment of the note section. Raises ValueError for a table that does not fit."""
    ident = read(0, 64)
    if ident[:4] != b"\x7fELF" or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        return None
    # elf.h: Elf64_Ehdr, Elf32_Ehdr, Elf64_Shdr, Elf32_Shdr.
    order = "<" if ident[5] == 1 else ">"
    wide = ident[4] == 2
    table = struct.unpack_from(order + ("Q" if wide else "I"), ident, 40 if wide else 32)[0]
    size, count, names_index = struct.unpack_from(order + "HHH", ident, 58 if wide else 46)
    layout = struct.Struct(order + ("IIQQQQIIQQ" if wide else "10I"))
    if size != layout.size or names_index >= count:
        return None
    headers = [layout.unpack_from(data, 0) for data in (read(table + index * size, size) for index in range(count))]
    names = read(headers[names_index][4], headers[names_index][5])
    for name, kind, _, _, offset, length, _, _, align, _ in headers:
        if kind == _SHT_NOTE and names.startswith(_NOTE_SECTION + b"\0", name):
            return read(offset, length), order, 8 if align == 8 else 4
    return None


def _parse_note(section: bytes, order: str, align: int) -> CompatNote | None:
    # elf.h Elf32_Nhdr: sizes of name and description, type; the description starts aligned.
    name_size, size, _ = struct.unpack_from(order + "III", section, 0)
    start = (12 + name_size + align - 1) // align * align
    if section[12 : 12 + name_size].rstrip(b"\0") != _NOTE_OWNER:
        return None
    # An Orin's says two bytes more than there are.
    text = section[start : start + size].rstrip(b"\0")
    try:
        description = loads(text)
    except CodecError:
        return None
    if not isinstance(description, dict):
        return None
    # Libraries have "CUDA version" and "driver", the toolkit's code other letters: it reads any.
    said = {key.casefold(): value for key, value in description.items()}
    cuda, drivers = said.get("cuda version"), said.get("driver", [])
    if not isinstance(cuda, str) or not isinstance(drivers, list):
        return None
    if not all(isinstance(driver, int) and not isinstance(driver, bool) for driver in drivers):
        return None
    return CompatNote(cuda, tuple(drivers))
