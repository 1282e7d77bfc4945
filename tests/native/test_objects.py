"""Imports and exports of the built libraries: nothing but libc, nothing but the API; hardening."""

from __future__ import annotations

import re

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support.native import CHECKOUT, build

LIBRARIES = {"libnvidia-ml.so": "nvml.h", "libcuda.so": "libcuda_rows.h"}


def dynamic(name: str) -> tuple[ELFFile, DynamicSection]:
    with (build() / name).open("rb") as file:
        elf = ELFFile(__import__("io").BytesIO(file.read()))
    section = elf.get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    return elf, section


@pytest.mark.parametrize("name", [*LIBRARIES, "nvidia-smi", "driver-tool", "nvc-sim-manager"])
def test_needs_nothing_but_libc(name: str) -> None:
    _, section = dynamic(name)
    needed = {tag.needed for tag in section.iter_tags("DT_NEEDED")}
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0"}


@pytest.mark.parametrize("name", [*LIBRARIES, "nvidia-smi", "driver-tool", "nvc-sim-manager"])
def test_binds_at_start_and_protects_its_relocations(name: str) -> None:
    elf, section = dynamic(name)
    assert {"PT_GNU_RELRO", "PT_GNU_STACK"} <= {segment.header.p_type for segment in elf.iter_segments()}
    assert any(tag.entry.d_val & 0x8 for tag in section.iter_tags("DT_FLAGS"))
    assert not [s for s in elf.iter_segments() if s.header.p_type == "PT_GNU_STACK" and s.header.p_flags & 1]


@pytest.mark.parametrize(("name", "source"), LIBRARIES.items(), ids=list(LIBRARIES))
def test_exports_exactly_the_declared_functions(name: str, source: str) -> None:
    text = (CHECKOUT / "native" / "sim" / source).read_text()
    declared = set(re.findall(r"NVML_DEVICE_FUNCTION \((nvml\w+),", text))
    declared |= set(re.findall(r"ROW \(\w+, (\w+),", text))
    declared |= set(re.findall(r"^NVML_API [\w ]+[ *](\w+) \(", text, re.MULTILINE))
    elf, _ = dynamic(name)
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    exported = {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] == "STB_GLOBAL"}
    assert declared == exported
    assert len(declared) >= 5
