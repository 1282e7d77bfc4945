"""When an image's CUDA compat libraries are used.

Source: libnvidia-container.md 5.7, newest rule, majors compared as numbers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.container.compat import CompatLibrary, CompatNote, choose, read_note, usable


def note_file(
    description: object, *, owner: bytes = b"NVIDIA Corporation\0", order: str = "<", wide: bool = True, align: int = 4
) -> bytes:
    """An ELF file that has section names and one note, nothing else."""
    text = description if isinstance(description, bytes) else json.dumps(description).encode() + b"\0"
    head = struct.pack(order + "III", len(owner), len(text), 1) + owner
    note = head + b"\0" * (-len(head) % align) + text
    names = b"\0.note.cuda.fwd_compatibility\0.shstrtab\0"
    start = 64 if wide else 52
    table = start + len(note) + len(names)
    section = struct.Struct(order + ("IIQQQQIIQQ" if wide else "10I"))
    rows = [
        (0,) * 10,
        (1, 7, 0, 0, start, len(note), 0, 0, align, 0),
        (names.index(b".shstrtab"), 3, 0, 0, start + len(note), len(names), 0, 0, 1, 0),
    ]
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1 if order == "<" else 2, 1)) + b"\0" * 9
    layout = "HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"
    header = ident + struct.pack(order + layout, 3, 62, 1, 0, 0, table, 0, start, 0, 0, section.size, len(rows), 2)
    return header + note + names + b"".join(section.pack(*row) for row in rows)


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, size: data[offset : offset + size]


GOOD = {"Format": 1, "CUDA Version": "13.0", "Driver": [535, 570, 580], "Device": [1]}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("wide", [True, False], ids=["64", "32"])
@pytest.mark.parametrize("align", [4, 8])
def test_reads_the_note(order: str, wide: bool, align: int) -> None:
    data = note_file(GOOD, order=order, wide=wide, align=align)

    assert CompatNote("13.0", (535, 570, 580)) == read_note(reader(data))


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ({"format": 1, "CUDA version": "12.9", "driver": [535, 575], "device": [1]}, CompatNote("12.9", (535, 575))),
        ({"format": 1, "CUDA version": "13.2"}, CompatNote("13.2", ())),
    ],
    ids=["575", "orin"],
)
def test_reads_the_notes_of_real_libraries(note: dict[str, object], expected: CompatNote) -> None:
    """Their keys were not found: the driver's major alone decided, and on an Orin nothing was used."""
    assert expected == read_note(reader(note_file(note)))


def test_an_orins_note_is_longer_than_its_section() -> None:
    data = bytearray(note_file({"format": 1, "CUDA version": "13.2"}))
    start = 64 + 4
    struct.pack_into("<I", data, start, struct.unpack_from("<I", data, start)[0] + 2)
    assert CompatNote("13.2", ()) == read_note(reader(bytes(data)))


def test_of_a_cuda_version_the_note_alone_tells() -> None:
    assert not usable(CompatLibrary("/d", "575.1"), "535.1", "12.2")
    assert usable(CompatLibrary("/d", "1.1", CompatNote("13.2", ())), "", "13.1")
    assert not usable(CompatLibrary("/d", "1.1", CompatNote("13.2", ())), "", "13.2")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x7fELF", id="only the magic"),
        pytest.param(b"#!/bin/sh\n" * 20, id="script"),
        pytest.param(note_file(GOOD, owner=b"GNU\0"), id="note of another owner"),
        pytest.param(note_file(b"not json"), id="not JSON"),
        pytest.param(note_file([1]), id="not an object"),
        pytest.param(note_file({**GOOD, "Driver": 535}), id="drivers not a list"),
        pytest.param(note_file({**GOOD, "Driver": ["535"]}), id="driver not a number"),
        pytest.param(note_file({**GOOD, "Driver": [True]}), id="driver a boolean"),
        pytest.param(note_file({**GOOD, "CUDA Version": 13}), id="version not a text"),
        pytest.param(note_file({}), id="no keys"),
        pytest.param(note_file(b"[" * 100_000), id="deep"),
    ],
)
def test_anything_else_is_no_note(data: bytes) -> None:
    assert read_note(reader(data)) is None


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damage_is_never_an_exception(noise: bytes, at: int) -> None:
    good = bytearray(note_file(GOOD))
    good[at : at + len(noise)] = noise

    found = read_note(reader(bytes(good)))

    assert found is None or isinstance(found, CompatNote)


@given(st.integers(0, 500))
def test_truncation_is_no_note(length: int) -> None:
    data = note_file(GOOD)

    assert (read_note(reader(data[:length])) is None) == (length < len(data))


def test_endless_sections_are_not_read() -> None:
    data = bytearray(note_file(GOOD))
    struct.pack_into("<H", data, 60, 0xFFFF)
    asked: list[int] = []

    def read(offset: int, size: int) -> bytes:
        asked.append(size)
        return bytes(data[offset : offset + size])

    assert read_note(read) is None
    assert max(asked) <= 1 << 20


@pytest.mark.parametrize(
    ("version", "driver", "expected"),
    [
        # libnvidia-container.md 5.7, vectors for driver 535.x; the last is what a comparison of strings gets wrong.
        pytest.param("550.54", "535.104.05", True, id="newer major"),
        pytest.param("535.1", "535.104.05", False, id="same major"),
        pytest.param("470.1", "535.104.05", False, id="older major"),
        pytest.param("550.54", "1010.1", False, id="majors are numbers"),
        pytest.param("1010.1", "550.54", True, id="majors are numbers, other way"),
        pytest.param("", "535.1", False, id="no version"),
        pytest.param("x.y", "535.1", False, id="version without numbers"),
        pytest.param("550.54", "", False, id="host driver not known"),
    ],
)
def test_without_a_note_the_major_decides(version: str, driver: str, expected: bool) -> None:
    assert expected == usable(CompatLibrary("/d", version), driver)


@pytest.mark.parametrize(
    ("version", "driver", "cuda", "expected"),
    [
        pytest.param("580.126.20", "580.95.05", "", True, id="same major, newer"),
        pytest.param("580.95.05", "580.126.20", "", False, id="same major, older"),
        pytest.param("580.95.05", "580.95.05", "", False, id="the same"),
        pytest.param("580.95.05", "535.104.05", "", True, id="supported older major"),
        pytest.param("580.95.05", "550.54.14", "", False, id="major that is not listed"),
        pytest.param("580.95.05", "", "12.8", True, id="no driver version, older CUDA"),
        pytest.param("580.95.05", "", "13.0", False, id="no driver version, same CUDA"),
        pytest.param("580.95.05", "", "", False, id="nothing known"),
        pytest.param("x", "", "12.8", True, id="a file without a version, older CUDA"),
        pytest.param("x", "580.95.05", "", False, id="a file without a version"),
        pytest.param("x", "580.95.05", "12.8", True, id="a file without a version, older CUDA of a known driver"),
    ],
)
def test_with_a_note_the_note_decides(version: str, driver: str, cuda: str, expected: bool) -> None:
    library = CompatLibrary("/d", version, CompatNote("13.0", (535, 570, 580)))

    assert expected == usable(library, driver, cuda)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(["libcuda.so", "libcuda.so.1", "libcuda.so.550.54.14"], "550.54.14", id="the usual directory"),
        pytest.param(["libcuda.so.550.54.14", "libcuda.so.535.1"], "", id="two candidates"),
        pytest.param(["libcuda.so.1"], "", id="only a link name"),
        pytest.param(["libfoo.so", "libnvidia-nvvm.so.550.54"], "", id="no libcuda"),
        pytest.param([], "", id="empty"),
    ],
)
def test_exactly_one_candidate(names: list[str], expected: str) -> None:
    assert expected == choose(names)
