"""Exports, imports and the cost of a lookup of the built wrapper libraries."""

from __future__ import annotations

import io
import re

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from tests.support.fake_driver import API, MANAGED, rows
from tests.support.native import CHECKOUT, build

ROWS = CHECKOUT / "native" / "shim" / "api" / "rows.def"
pytestmark = pytest.mark.parametrize("table", [API, MANAGED])


def library(table: str) -> ELFFile:
    return ELFFile(io.BytesIO((build() / table).read_bytes()))


def symbols(elf: ELFFile) -> SymbolTableSection:
    section = elf.get_section_by_name(".dynsym")
    assert isinstance(section, SymbolTableSection)
    return section


def test_exports_exactly_the_rows_and_the_two_look_ups(table: str) -> None:
    exported = {
        symbol.name
        for symbol in symbols(library(table)).iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
    }
    assert exported == {symbol for symbol, _ in rows(table)} | {"dlsym", "dlvsym"}
    assert len(exported) > 30 if table == API else len(exported) == 7


def test_has_the_look_ups_in_the_versions_before_and_since_libc_has_them(table: str) -> None:
    elf = library(table)
    versions = elf.get_section_by_name(".gnu.version")
    assert isinstance(versions, GNUVerSymSection)
    names = {}
    for definition, auxiliaries in elf.get_section_by_name(".gnu.version_d").iter_versions():
        names[definition["vd_ndx"]] = next(iter(auxiliaries)).name
    found = set()
    for index, symbol in enumerate(symbols(elf).iter_symbols()):
        number = versions.get_symbol(index)["ndx"]
        if symbol.name in {"dlsym", "dlvsym"} and isinstance(number, int):
            found.add((symbol.name, names[number & 0x7FFF]))
    first = "GLIBC_2.17" if elf["e_machine"] == "EM_AARCH64" else "GLIBC_2.2.5"
    assert found == {(name, version) for name in ("dlsym", "dlvsym") for version in (first, "GLIBC_2.34")}


def test_needs_nothing_of_libc(table: str) -> None:
    """So it loads with any libc in any version. Weak symbols may be missing."""
    elf = library(table)
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    assert {tag.needed for tag in section.iter_tags("DT_NEEDED")} <= {"libc.so.6"}
    undefined = (s for s in symbols(elf).iter_symbols() if s["st_shndx"] == "SHN_UNDEF" and s.name)
    asked = {symbol.name: symbol["st_info"]["bind"] for symbol in undefined}
    assert "_r_debug" in asked
    assert set(asked.values()) == {"STB_WEAK"}
    assert elf.get_section_by_name(".gnu.version_r") is None


def test_runs_nothing_when_it_is_loaded(table: str) -> None:
    elf = library(table)
    tags = {tag.entry.d_tag for tag in elf.get_section_by_name(".dynamic").iter_tags()}
    assert not tags & {"DT_INIT", "DT_INIT_ARRAY", "DT_FINI", "DT_FINI_ARRAY", "DT_PREINIT_ARRAY", "DT_TEXTREL"}


def test_every_row_names_its_symbol_once(table: str) -> None:
    names = [symbol for symbol, _ in rows(table)]
    names += re.findall(r"^USE \([^,]+, (\w+),", ROWS.read_text(), re.MULTILINE)
    assert len(names) == len(set(names))
