from __future__ import annotations

import errno
import io
import os
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvc.formats import FormatError, elf
from nvc.formats.elf import AbiTag, ElfDynamic, ElfHeader
from tests.support.driver_root import TLS_NOTE, compile_library

OTHER_NOTE = TLS_NOTE.replace('.note.ABI-tag, "a"', '.note.ABI-tag, "a", @note')


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    base = tmp_path_factory.mktemp("elf")
    compile_library(base / "libneeded.so", "libneeded.so.1")
    note = OTHER_NOTE + '.section .note.mine, "a", @note\n.ascii "hello"\n'
    compile_library(base / "libfoo.so", "libfoo.so.1", note=note, needs=base / "libneeded.so")
    return (base / "libfoo.so").read_bytes()


def build(tmp_path: Path, note: str, *, bits32: bool = False) -> io.BytesIO:
    compile_library(tmp_path / "lib.so", "", note=note, bits32=bits32)
    return io.BytesIO((tmp_path / "lib.so").read_bytes())


def test_a_library(library: bytes) -> None:
    stream = io.BytesIO(library)

    assert ElfHeader(64, "EM_X86_64") == elf.header(stream)
    assert ElfDynamic("libfoo.so.1", ("libneeded.so.1",)) == elf.dynamic(stream)
    assert AbiTag(0, (2, 3, 99)) == elf.abi_tag(stream)
    assert b"hello" == elf.section(stream, ".note.mine")
    assert elf.section(stream, ".none") is None


def test_the_answers_are_those_of_pyelftools(library: bytes) -> None:
    """Every shared library of this machine's Python, and one of ours: SONAME, NEEDED, machine and notes."""
    own = sorted(Path(sysconfig.get_path("platstdlib"), "lib-dynload").glob("*.so"))[:20]
    for data in (library, *(path.read_bytes() for path in own)):
        file = ELFFile(io.BytesIO(data))
        dynamic = file.get_section_by_name(".dynamic")
        tags = list(dynamic.iter_tags())
        soname = next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), "")
        needed = tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
        stream = io.BytesIO(data)
        assert elf.header(stream) == ElfHeader(file.elfclass, file["e_machine"])
        assert elf.dynamic(stream) == ElfDynamic(soname, needed)
        for section in (".note.gnu.build-id", ".comment", ".none"):
            found = file.get_section_by_name(section)
            assert elf.section(stream, section) == (found.data() if found else None)


def test_a_32_bit_library_without_names(tmp_path: Path) -> None:
    stream = build(tmp_path, "", bits32=True)

    assert ElfHeader(32, "EM_386") == elf.header(stream)
    assert ElfDynamic("", ()) == elf.dynamic(stream)
    assert elf.abi_tag(stream) is None


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        pytest.param(OTHER_NOTE.replace("0, 2, 3, 99", "2, 6, 1, 0"), AbiTag(2, (6, 1, 0)), id="another-system"),
        pytest.param(OTHER_NOTE.replace("4, 16, 1", "4, 16, 7"), None, id="another-type"),
        pytest.param(OTHER_NOTE.replace("GNU", "FOO"), None, id="another-owner"),
        pytest.param('.section .note.ABI-tag, "a", @progbits\n.long 1\n', None, id="not-a-note-section"),
    ],
)
def test_abi_notes(tmp_path: Path, note: str, expected: AbiTag | None) -> None:
    assert expected == elf.abi_tag(build(tmp_path, note))


def test_an_abi_note_that_is_too_short(tmp_path: Path) -> None:
    short = OTHER_NOTE.replace("4, 16, 1", "4, 4, 1").replace("0, 2, 3, 99", "0")

    with pytest.raises(FormatError, match="ABI-tag"):
        elf.abi_tag(build(tmp_path, short))


def test_a_long_section_is_refused(library: bytes) -> None:
    with pytest.raises(FormatError, match="5 bytes are more than 4"):
        elf.section(io.BytesIO(library), ".note.mine", limit=4)


def test_an_object_without_dynamic_section(tmp_path: Path) -> None:
    compile_library(tmp_path / "lib.so", "")
    data = bytearray((tmp_path / "lib.so").read_bytes())
    data[56:58] = b"\0\0"  # e_phnum

    with pytest.raises(FormatError, match="there is none"):
        elf.dynamic(io.BytesIO(bytes(data)))


def test_needed_libraries_are_limited(library: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "NEEDED_LIMIT", 0)

    with pytest.raises(FormatError, match="more than 0 needed"):
        elf.dynamic(io.BytesIO(library))


def test_reading_is_limited(library: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "READ_LIMIT", 100)

    with pytest.raises(FormatError, match="more than 100 bytes"):
        elf.dynamic(io.BytesIO(library))


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"\x7fELF", b"\x7fELF\x02\x01\x01" + bytes(20), b"#!/bin/sh\n" * 9])
def test_garbage_is_refused(data: bytes) -> None:
    for ask in (elf.header, elf.dynamic, elf.abi_tag):
        with pytest.raises(FormatError, match="ELF, "):
            ask(io.BytesIO(data))


class Broken(io.BytesIO):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def read(self, size: int | None = -1) -> bytes:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EIO, os.strerror(errno.EIO)), "input/output error"),
    ],
)
def test_failures_while_reading_name_the_reason(error: BaseException, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        elf.header(Broken(error))


def ask_everything(data: bytes) -> None:
    for ask in (elf.header, elf.dynamic, elf.abi_tag, lambda stream: elf.section(stream, ".note.mine")):
        try:
            ask(io.BytesIO(data))
        except FormatError as error:
            assert error.what == "ELF"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(at=st.integers(0, 14000), junk=st.binary(min_size=1, max_size=16))
def test_damaged_libraries_are_read_or_refused(library: bytes, at: int, junk: bytes) -> None:
    at %= len(library)
    ask_everything(library[:at] + junk + library[at + len(junk) :])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(at=st.integers(0, 64), junk=st.binary(min_size=1, max_size=8))
def test_damaged_headers_are_read_or_refused(library: bytes, at: int, junk: bytes) -> None:
    ask_everything(library[:at] + junk + library[at + len(junk) :])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(length=st.integers(0, 14000))
def test_libraries_cut_short_are_read_or_refused(library: bytes, length: int) -> None:
    ask_everything(library[: length % len(library)])
