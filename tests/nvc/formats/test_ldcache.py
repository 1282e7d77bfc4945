from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.formats import FormatError, ldcache
from nvc.formats.ldcache import CacheEntry, LoaderCache, arch_name, parse
from tests.support import ldcache_writer as writer
from tests.support.driver_root import LDCONFIG, compile_library

ENTRIES = (("libz.so.1", "/usr/lib/libz.so.1", 0x0303, 0), ("libcuda.so.1", "/lib/libcuda.so.1", 0x0003, 0))
PARSED = (CacheEntry("libz.so.1", "/usr/lib/libz.so.1", 0x0303), CacheEntry("libcuda.so.1", "/lib/libcuda.so.1", 3))
HWCAP = ldcache.HWCAP_EXTENSION


@pytest.mark.parametrize(
    ("data", "layout"),
    [
        pytest.param(writer.new(ENTRIES), "new", id="new"),
        pytest.param(writer.new(ENTRIES, order=">"), "new", id="new-big-endian"),
        pytest.param(writer.new(ENTRIES, endian=0), "new", id="new-without-byte-order-mark"),
        pytest.param(writer.new(ENTRIES, order=">", endian=0), "new", id="new-big-endian-without-mark"),
        pytest.param(writer.old(ENTRIES), "old", id="old"),
        pytest.param(writer.old(ENTRIES, order=">"), "old", id="old-big-endian"),
        pytest.param(writer.both(ENTRIES), "compat", id="both"),
        pytest.param(writer.both(ENTRIES, alignment=4), "compat", id="both-by-a-32-bit-ldconfig"),
    ],
)
def test_every_layout_gives_the_same_entries(data: bytes, layout: str) -> None:
    assert LoaderCache(PARSED, layout) == parse(data)


@pytest.mark.parametrize("write", [writer.old, writer.new, writer.both])
def test_only_entries_of_named_libraries_are_made(write: Callable[[list[tuple[str, str, int, int]]], bytes]) -> None:
    names = ("libcuda.so.1", "libcuda.so", "libcudadebugger.so.1", "xlibcuda.so.1", "libcuda.so.1.so", "no-library")
    data = write([(name, f"/lib/{name}", 0x303, 0) for name in names])

    found = [entry.name for entry in parse(data, {b"libcuda.so"}).entries]
    assert sorted(found) == ["libcuda.so", "libcuda.so.1", "libcuda.so.1.so"]
    assert set(found) < {entry.name for entry in parse(data).entries}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("alignment", [4, 8])
def test_padding_after_the_old_table_is_skipped(count: int, alignment: int) -> None:
    cache = parse(writer.both((ENTRIES * 2)[:count], alignment=alignment, generator=b"g"))

    assert ("compat", "g", (PARSED * 2)[:count]) == (cache.layout, cache.generator, cache.entries)


@pytest.mark.parametrize("order", ["<", ">"])
def test_extensions_name_generator_and_hwcaps_directories(order: str) -> None:
    entries = (("a", "/a", 1, HWCAP | 1), ("a", "/b", 1, HWCAP), ("a", "/c", 1, 7))

    cache = parse(writer.new(entries, order=order, generator=b"ldconfig 9", hwcaps=("x86-64-v2", "x86-64-v3")))

    assert "ldconfig 9" == cache.generator
    assert ["x86-64-v3", "x86-64-v2", ""] == [entry.hwcaps for entry in cache.entries]


def test_unknown_extension_sections_are_passed_over() -> None:
    data = bytearray(writer.new(ENTRIES, generator=b"gen!"))
    at = struct.unpack_from("<I", data, 32)[0]
    struct.pack_into("<I", data, at + 8, 99)

    assert "" == parse(bytes(data)).generator


@pytest.mark.parametrize(
    ("flags", "name"),
    [(arch.flag | 3, arch.name) for arch in ldcache.ARCHES] + [(0x7F03, "unknown architecture 0x7f00")],
)
def test_architecture_names(flags: int, name: str) -> None:
    entry = CacheEntry("a", "/a", flags)

    assert name == arch_name(flags)
    assert flags & 0xFF00 == entry.arch


@pytest.mark.parametrize(("flags", "expected"), [(0x301, True), (0x303, True), (0x302, False), (0x300, False)])
def test_only_elf_types_count(flags: int, expected: bool) -> None:
    assert expected is CacheEntry("a", "/a", flags).is_elf


def patched(offset: int, value: int, data: bytes | None = None) -> bytes:
    changed = bytearray(data if data is not None else writer.new(ENTRIES, generator=b"gen!", hwcaps=("h",)))
    struct.pack_into("<I", changed, offset, value)
    return bytes(changed)


EXTENSION = struct.unpack_from("<I", patched(44, 0), 32)[0]


@pytest.mark.parametrize(
    ("data", "place", "reason"),
    [
        pytest.param(b"", "header", "neither magic", id="empty"),
        pytest.param(b"\x7fELF" * 20, "header", "neither magic", id="another-file"),
        pytest.param(b"ld.so-1.7.0", "old header", "cut short", id="old-cut-short"),
        pytest.param(b"glibc-ld.so.cache1.1", "new header", "cut short", id="new-cut-short"),
        pytest.param(writer.new(()).replace(b"1.1", b"1.2"), "new header", "version", id="another-version"),
        pytest.param(writer.new((), endian=1), "new header", "byte order", id="marked-invalid"),
        pytest.param(patched(20, 20), "new header", "do not fit", id="more-entries-than-bytes"),
        pytest.param(patched(20, 0xFFFFFFFF), "new header", "do not fit", id="four-billion-entries"),
        pytest.param(patched(24, 1 << 20), "new header", "do not fit", id="more-text-than-bytes"),
        pytest.param(patched(48 + 4, 1 << 30), "entry 0, name", "no text at offset", id="name-outside"),
        pytest.param(patched(48 + 24 + 8, 1 << 30), "entry 1, path", "no text at offset", id="path-outside"),
        pytest.param(patched(32, EXTENSION + 2), "extension header", "not in the file", id="extension-misaligned"),
        pytest.param(patched(32, 1 << 20), "extension header", "not in the file", id="extension-outside"),
        pytest.param(patched(EXTENSION, 5), "extension header", "magic", id="extension-magic"),
        pytest.param(patched(EXTENSION + 4, 1 << 20), "extension header", "do not fit", id="too-many-sections"),
        pytest.param(patched(EXTENSION + 20, 1 << 20), "extension section 0", "not in", id="section-outside"),
        pytest.param(patched(EXTENSION + 36, 3), "hwcaps section", "multiple of 4", id="hwcaps-section-size"),
        pytest.param(writer.new((("a", "/a", 1, HWCAP),)), "entry 0", "hwcaps index 0 of 0", id="no-such-hwcaps"),
        pytest.param(patched(12, 9, writer.old(ENTRIES)), "old header", "says more", id="old-count"),
        pytest.param(writer.old(ENTRIES)[:-1], "entry 1, path", "no text", id="old-text-not-ended"),
        pytest.param(writer.new((("a" * 5000, "/a", 1, 0),)), "entry 0, name", "no text", id="absurdly-long-name"),
    ],
)
def test_damage_is_an_error_with_its_place(data: bytes, place: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        parse(data)

    assert ("ld.so.cache", place) == (caught.value.what, caught.value.place)


def test_size_is_limited() -> None:
    with pytest.raises(FormatError, match="more than"):
        parse(bytes(ldcache.MAX_SIZE + 1))


def test_texts_that_many_entries_share_are_limited_in_sum() -> None:
    text = "a" * 4000

    with pytest.raises(FormatError, match="together"):
        parse(writer.new(((text, text, 1, 0),) * 10000))


@given(st.binary(max_size=400))
def test_random_bytes_are_parsed_or_refused(data: bytes) -> None:
    for prefix in (b"", b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"):
        try:
            assert isinstance(parse(prefix + data), LoaderCache)
        except FormatError as error:
            assert error.place


@given(st.integers(0, 400), st.binary(max_size=8), st.sampled_from(["new", "old", "both"]))
def test_damaged_caches_are_parsed_or_refused(at: int, junk: bytes, layout: str) -> None:
    data = {"new": writer.new(ENTRIES, generator=b"g"), "old": writer.old(ENTRIES), "both": writer.both(ENTRIES)}[
        layout
    ]
    try:
        parse(data[:at] + junk + data[at + len(junk) :])
    except FormatError as error:
        assert error.place


@given(st.integers(0, 300))
def test_a_cache_cut_short_is_refused_or_complete(length: int) -> None:
    whole = writer.new(ENTRIES)
    try:
        assert PARSED == parse(whole[:length]).entries
        assert length >= len(whole)
    except FormatError:
        assert length < len(whole)


names = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20)


@given(st.lists(st.tuples(names, names, st.integers(0, 0x7FFFFFFF), st.integers(0, (1 << 62) - 1)), max_size=8))
def test_what_is_written_is_read(entries: list[writer.Entry]) -> None:
    assert tuple(CacheEntry(*entry) for entry in entries) == parse(writer.new(entries)).entries
    assert tuple(CacheEntry(*entry[:3]) for entry in entries) == parse(writer.old(entries)).entries


@pytest.mark.parametrize("layout", ["new", "compat", "old"])
def test_caches_of_the_real_ldconfig(tmp_path: Path, layout: str) -> None:
    compile_library(tmp_path / "usr/lib/libfoo.so.1.2", "libfoo.so.1")
    compile_library(tmp_path / "usr/lib/glibc-hwcaps/x86-64-v3/libfoo.so.1.2", "libfoo.so.1")
    compile_library(tmp_path / "usr/lib32/libfoo.so.1.2", "libfoo.so.1", bits32=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.conf").write_text("/usr/lib32\n")
    subprocess.run([LDCONFIG, "-c", layout, "-r", str(tmp_path)], check=True, capture_output=True)

    cache = parse((tmp_path / "etc/ld.so.cache").read_bytes())

    assert layout == cache.layout
    found = [(entry.path, entry.arch, entry.hwcaps) for entry in cache.entries if entry.name == "libfoo.so.1"]
    hwcaps = "" if layout == "old" else "x86-64-v3"
    assert ("/usr/lib/glibc-hwcaps/x86-64-v3/libfoo.so.1.2", 0x300, hwcaps) in found
    assert ("/usr/lib/libfoo.so.1", 0x300, "") in found
    assert ("/usr/lib32/libfoo.so.1", 0, "") in found
    assert ("ldconfig" in cache.generator) is (layout != "old")
