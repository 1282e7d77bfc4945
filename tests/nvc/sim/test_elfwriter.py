"""Generated libraries are accepted by pyelftools, the real ldconfig and the real loader."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection, DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection
from hypothesis import given
from hypothesis import strategies as st

from nvc.sim.elfwriter import AARCH64, ARMHF, I386, X86_64, Target, shared_object

TARGETS = {"x86-64": X86_64, "i386": I386, "aarch64": AARCH64, "arm": ARMHF}
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-._0123456789", min_size=1, max_size=60)


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
@given(soname=NAMES, needed=st.lists(NAMES, max_size=5))
def test_names_come_back(target: Target, soname: str, needed: list[str]) -> None:
    elf = ELFFile(io.BytesIO(shared_object(target, soname, needed=tuple(needed))))
    assert (elf.elfclass, elf.header.e_machine, elf.header.e_type) == (
        target.bits,
        {62: "EM_X86_64", 3: "EM_386", 183: "EM_AARCH64", 40: "EM_ARM"}[target.machine],
        "ET_DYN",
    )
    section = elf.get_section_by_name(".dynamic")
    segment = next(segment for segment in elf.iter_segments() if isinstance(segment, DynamicSegment))
    assert isinstance(section, DynamicSection)
    for table in (section, segment):
        assert [tag.soname for tag in table.iter_tags("DT_SONAME")] == [soname]
        assert [tag.needed for tag in table.iter_tags("DT_NEEDED")] == needed


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_the_abi_note_is_found_by_section_and_segment(target: Target) -> None:
    elf = ELFFile(io.BytesIO(shared_object(target, "libx.so.1", kernel=(2, 3, 99))))
    section = elf.get_section_by_name(".note.ABI-tag")
    assert isinstance(section, NoteSection)
    segment = next(segment for segment in elf.iter_segments() if segment.header.p_type == "PT_NOTE")
    for notes in (section.iter_notes(), segment.iter_notes()):
        (note,) = notes
        assert note["n_name"] == "GNU"
        assert note["n_type"] == "NT_GNU_ABI_TAG"
        assert (note["n_desc"]["abi_major"], note["n_desc"]["abi_minor"], note["n_desc"]["abi_tiny"]) == (2, 3, 99)


def test_without_a_note_there_is_none() -> None:
    elf = ELFFile(io.BytesIO(shared_object(X86_64, "libx.so.1")))
    assert elf.get_section_by_name(".note.ABI-tag") is None
    assert "PT_NOTE" not in {segment.header.p_type for segment in elf.iter_segments()}


def test_ldconfig_files_each_word_size_under_its_kind(tmp_path: Path) -> None:
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib32").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/lib64\n/lib32\n")
    (tmp_path / "lib64/libx.so.1.2").write_bytes(shared_object(X86_64, "libx.so.1", needed=("libc.so.6",)))
    (tmp_path / "lib32/libx.so.1.2").write_bytes(shared_object(I386, "libx.so.1", needed=("libc.so.6",)))
    done = subprocess.run(["/sbin/ldconfig", "-r", tmp_path], capture_output=True, text=True, check=True)
    assert "warning" not in done.stderr.lower()
    assert "not an ELF" not in done.stderr
    command = ["/sbin/ldconfig", "-p", "-C", tmp_path / "etc/ld.so.cache"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "\tlibx.so.1 (libc6,x86-64) => /lib64/libx.so.1" in lines
    assert "\tlibx.so.1 (libc6) => /lib32/libx.so.1" in lines


def test_the_loader_loads_it_and_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "liba.so.1").write_bytes(shared_object(X86_64, "liba.so.1", needed=("libb.so.1",), kernel=(2, 3, 99)))
    (tmp_path / "libb.so.1").write_bytes(shared_object(X86_64, "libb.so.1", needed=("libc.so.6",)))
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "programs/load_library.py"],
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
