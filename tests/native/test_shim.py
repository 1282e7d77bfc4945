"""Exports, imports and cost of libnvc-shim.so: minimal, as every program of a container loads it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from tests.support.native import build

EXPORTED = {
    "ioctl",
    "mmap",
    "mmap64",
    "munmap",
    "close",
    "dup",
    "dup2",
    "dup3",
    "poll",
    "nvc_shim_next_managed",
    "nvc_shim_managed_refused",
}
#: Permitted imports, all of them in every glibc and musl; weak ones may be missing.
STRONG = {"__errno_location"}
WEAK = {
    "_r_debug",
    "dlsym",
    "environ",
    "__environ",
    "pthread_create",
    "pthread_attr_init",
    "pthread_attr_setstacksize",
    "pthread_attr_setdetachstate",
}
OLDEST = {"EM_X86_64": "GLIBC_2.2.5", "EM_AARCH64": "GLIBC_2.17"}
#: Bytes of memory that a program gets mapped; most of it is never touched.
LARGEST = 160 << 10


@pytest.fixture(scope="module")
def library() -> Path:
    return build() / "libnvc-shim.so"


@pytest.fixture(scope="module")
def elf(library: Path) -> ELFFile:
    return ELFFile(BytesIO(library.read_bytes()))


def symbols(elf: ELFFile, *, defined: bool) -> dict[str, str]:
    """Name -> binding."""
    table = elf.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    found = (s for s in table.iter_symbols() if s.name and (s["st_shndx"] != "SHN_UNDEF") == defined)
    return {symbol.name: symbol["st_info"]["bind"] for symbol in found}


def tags(elf: ELFFile) -> list[str]:
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return [tag.entry.d_tag for tag in section.iter_tags()]


def test_exports_exactly_the_interposed_functions(elf: ELFFile) -> None:
    assert set(symbols(elf, defined=True)) == EXPORTED


def test_imports_next_to_nothing_from_libc(elf: ELFFile) -> None:
    asked = symbols(elf, defined=False)
    assert {name for name, binding in asked.items() if binding != "STB_WEAK"} <= STRONG
    assert {name for name, binding in asked.items() if binding == "STB_WEAK"} <= WEAK


def test_needs_libc_alone_in_its_oldest_version(elf: ELFFile) -> None:
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    assert {tag.needed for tag in section.iter_tags("DT_NEEDED")} == {"libc.so.6"}
    versions = elf.get_section_by_name(".gnu.version_r")
    assert isinstance(versions, GNUVerNeedSection)
    asked = {(need.name, version.name) for need, each in versions.iter_versions() for version in each}
    assert asked == {("libc.so.6", OLDEST[elf["e_machine"]])}


def test_runs_nothing_at_load_or_at_the_end(elf: ELFFile) -> None:
    assert not {"DT_INIT", "DT_FINI", "DT_INIT_ARRAY", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY"} & set(tags(elf))
    assert not [s.name for s in elf.iter_sections() if s.name.startswith((".init_array", ".ctors", ".fini_array"))]


def test_has_no_text_relocations_and_no_thread_local_storage(elf: ELFFile) -> None:
    assert "DT_TEXTREL" not in tags(elf)
    assert not [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_TLS"]


def test_is_small(elf: ELFFile) -> None:
    size = sum(segment["p_memsz"] for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD")
    assert 4096 < size <= LARGEST


@pytest.mark.parametrize("name", ["libnvc-shim.so", "libnvc-shim-managed.so"])
def test_is_mapped_in_two_pieces_and_writes_one_page(name: str) -> None:
    """The cost of each program's start. A third mapping, a write-protected table, or more variables add to it."""
    elf = ELFFile(BytesIO((build() / name).read_bytes()))
    pieces = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
    assert [(piece["p_flags"] & 1, piece["p_flags"] & 2) for piece in pieces] == [(1, 0), (0, 2)]
    written = pieces[1]
    assert written["p_vaddr"] // 4096 == (written["p_vaddr"] + written["p_memsz"] - 1) // 4096
    assert not [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_GNU_RELRO"]
    assert not [s for s in elf.iter_segments() if s["p_type"] == "PT_GNU_STACK" and s["p_flags"] & 1]
