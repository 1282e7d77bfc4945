"""The parts of an ELF file that discovery needs: class, machine, SONAME, NEEDED, the ABI note, a named section.

Reading is pyelftools' work; it is imported with the first file, because it costs more than the whole of a warm
``configure``. The file may be anything (a half-written upgrade, an image's library): whatever pyelftools stumbles
over becomes a FormatError, and the bytes it may read are counted, so that a crafted file cannot keep it busy.
"""

from __future__ import annotations

import io
from typing import cast

from nvc.base.record import Record
from nvc.formats import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO, TypeVar

    T = TypeVar("T")

#: A driver library is up to 100 MB, but its headers, dynamic section and string table are some 100 KB.
READ_LIMIT = 16 << 20
NEEDED_LIMIT = 1024

#: Elf_External_Note of .note.ABI-tag (glibc csu/abi-note.S): type 1, name "GNU", four words.
ABI_OS_LINUX = 0
_ABI_NOTE_TYPES = (1, "NT_GNU_ABI_TAG")


class ElfHeader(Record):
    """bits: 32 or 64; machine: as <elf.h> spells it ("EM_X86_64")."""

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
    return _read(stream, "header", lambda elf: ElfHeader(int(elf.elfclass), str(elf["e_machine"])))


def dynamic(stream: BinaryIO) -> ElfDynamic:
    """SONAME and NEEDED. Raises FormatError, also when there is no dynamic section."""
    return _read(stream, "dynamic section", _dynamic)


def abi_tag(stream: BinaryIO) -> AbiTag | None:
    """The note in .note.ABI-tag, or None when the section or the note is missing. Raises FormatError."""
    return _read(stream, "section .note.ABI-tag", _abi_tag)


def section(stream: BinaryIO, name: str, *, limit: int = 1 << 16) -> bytes | None:
    """The bytes of a named section, or None. Raises FormatError, also for one longer than ``limit``."""

    def find(elf: Any) -> bytes | None:
        found = elf.get_section_by_name(name)
        if found is None:
            return None
        if found["sh_size"] > limit:
            raise _error(f"section {name}", f"{found['sh_size']} bytes are more than {limit}")
        return bytes(found.data())

    return _read(stream, f"section {name}", find)


def _read(stream: BinaryIO, place: str, ask: Callable[[Any], T]) -> T:
    # Imported here: 60 ms, and a warm configure needs no ELF file.
    from elftools.elf.elffile import ELFFile

    try:
        return ask(ELFFile(cast("BinaryIO", _Limited(stream))))
    except FormatError:
        raise
    except OSError as error:
        raise _error(place, (error.strerror or str(error)).lower()) from error
    except MemoryError as error:
        raise _error(place, "a size in it is absurd") from error
    except Exception as error:
        # pyelftools has no one error for bad input: ELFError, construct's, KeyError, ValueError, AssertionError,
        # TypeError, AttributeError, struct.error ... all mean that the file is malformed.
        raise _error(place, str(error).split("\n")[0] or type(error).__name__) from error


def _dynamic(elf: Any) -> ElfDynamic:
    found = next(elf.iter_segments("PT_DYNAMIC"), None)
    if found is None:
        raise _error("dynamic section", "there is none")
    soname, needed = "", []
    for tag in found.iter_tags():
        if tag.entry.d_tag == "DT_SONAME":
            soname = str(tag.soname)
        elif tag.entry.d_tag == "DT_NEEDED":
            needed.append(str(tag.needed))
            if len(needed) > NEEDED_LIMIT:
                raise _error("dynamic section", f"more than {NEEDED_LIMIT} needed libraries")
    return ElfDynamic(soname, tuple(needed))


def _abi_tag(elf: Any) -> AbiTag | None:
    found = elf.get_section_by_name(".note.ABI-tag")
    if found is None or not hasattr(found, "iter_notes"):
        return None
    for note in found.iter_notes():
        if note["n_name"] == "GNU" and note["n_type"] in _ABI_NOTE_TYPES:
            order: Any = "little" if elf.little_endian else "big"
            raw = bytes(note["n_descdata"])
            if len(raw) < 16:
                raise _error("section .note.ABI-tag", f"{len(raw)} bytes are not four words")
            system, *kernel = (int.from_bytes(raw[at : at + 4], order) for at in (0, 4, 8, 12))
            return AbiTag(system, (kernel[0], kernel[1], kernel[2]))
    return None


class _Limited(io.RawIOBase):
    """The stream, until READ_LIMIT bytes are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = READ_LIMIT

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise _error("file", f"more than {READ_LIMIT} bytes would have to be read")
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _error(place: str, reason: str) -> FormatError:
    return FormatError("ELF", place, reason)
