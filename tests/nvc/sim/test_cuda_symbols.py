"""Names and versions of the simulated libcuda; no GPU and no node is needed for that."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.model import Host
from nvc.sim import MACHINE_FILE
from tests.support.native import CHECKOUT, build

ROWS = [
    (name, symbol, int(version), per_thread == "1")
    for name, symbol, version, per_thread in re.findall(
        r"ROW \((\w+), (\w+), (\d+), ([01])\)", (CHECKOUT / "native/sim/libcuda_rows.h").read_text()
    )
]
FOUND, UNKNOWN, TOO_OLD = 0, 1, 2
SUCCESS, INVALID_VALUE, NOT_FOUND = 0, 1, 500
UNTOUCHED = 0x55


@pytest.fixture
def cuda(made: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    monkeypatch.setenv("NVC_SIM_MACHINE", f"{made('h200').root}/{MACHINE_FILE}")
    yield ctypes.CDLL(str(build() / "libcuda.so"))


def address(cuda: ctypes.CDLL, symbol: str) -> int | None:
    return ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value


def ask(cuda: ctypes.CDLL, name: str, version: int, flags: int = 0) -> tuple[int, int | None, int]:
    function, status = ctypes.c_void_p(UNTOUCHED), ctypes.c_int(-1)
    arguments = (name.encode(), ctypes.byref(function), version, ctypes.c_uint64(flags), ctypes.byref(status))
    result = cuda.cuGetProcAddress_v2(*arguments)
    return result, function.value, status.value


@pytest.mark.parametrize("row", ROWS, ids=[f"{symbol}-{name}" for name, symbol, _, _ in ROWS])
def test_every_row_is_found_at_its_version_and_not_before(cuda: ctypes.CDLL, row: tuple[str, str, int, bool]) -> None:
    name, _, version, per_thread = row
    same = [other for other in ROWS if other[0] == name and other[2] == version and other[3] == per_thread]
    assert ask(cuda, name, version, 2 if per_thread else 0) == (SUCCESS, address(cuda, same[-1][1]), FOUND)
    earlier = [other for other in ROWS if other[0] == name and other[2] < version and not other[3]]
    expected = address(cuda, max(earlier, key=lambda other: other[2])[1]) if earlier else None
    assert ask(cuda, name, version - 1) == (SUCCESS, expected, FOUND if earlier else TOO_OLD)


def test_answers_as_a_580_driver(cuda: ctypes.CDLL) -> None:
    """Each line was seen with 580.159.04."""
    assert ask(cuda, "cuMemAlloc_v2", 12000) == (SUCCESS, None, UNKNOWN)
    assert ask(cuda, "cuNope", 12000) == (SUCCESS, None, UNKNOWN)
    assert ask(cuda, "", 12000) == (SUCCESS, None, UNKNOWN)
    assert ask(cuda, "cuMemAllocAsync", 9000) == (SUCCESS, None, TOO_OLD)
    assert ask(cuda, "cuMemAlloc", 99000) == (INVALID_VALUE, UNTOUCHED, -1)
    assert ask(cuda, "cuMemAllocAsync", 12000, 7) == (INVALID_VALUE, UNTOUCHED, -1)
    for flags, symbol in ((0, ""), (1, ""), (2, "_ptsz"), (3, "_ptsz")):
        assert ask(cuda, "cuMemAllocAsync", 12000, flags)[1] == address(cuda, f"cuMemAllocAsync{symbol}")
    for version, symbol in ((11040, "cuCtxCreate_v3"), (12050, "cuCtxCreate_v4"), (13000, "cuCtxCreate_v4")):
        assert ask(cuda, "cuCtxCreate", version)[1] == address(cuda, symbol)


def test_the_first_abi_says_what_is_not_found_by_its_result(cuda: ctypes.CDLL) -> None:
    function = ctypes.c_void_p(UNTOUCHED)
    arguments = (ctypes.byref(function), 12000, ctypes.c_uint64(0))
    assert (cuda.cuGetProcAddress(b"cuNope", *arguments), function.value) == (NOT_FOUND, UNTOUCHED)
    assert cuda.cuGetProcAddress(b"cuMemAlloc", *arguments) == SUCCESS
    assert function.value == address(cuda, "cuMemAlloc_v2")


def test_no_export_table_is_known(cuda: ctypes.CDLL) -> None:
    table = ctypes.c_void_p(UNTOUCHED)
    assert (cuda.cuGetExportTable(ctypes.byref(table), b"\1" * 16), table.value) == (INVALID_VALUE, None)


@pytest.mark.parametrize(
    ("number", "name", "text"),
    [
        (2, b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
        (709, b"CUDA_ERROR_CONTEXT_IS_DESTROYED", b"context is destroyed"),
    ],
)
def test_errors_have_names_and_words(cuda: ctypes.CDLL, number: int, name: bytes, text: bytes) -> None:
    said = ctypes.c_char_p()
    assert (cuda.cuGetErrorName(number, ctypes.byref(said)), said.value) == (SUCCESS, name)
    assert (cuda.cuGetErrorString(number, ctypes.byref(said)), said.value) == (SUCCESS, text)
    assert (cuda.cuGetErrorName(12345, ctypes.byref(said)), said.value) == (INVALID_VALUE, None)


def test_interposable_calls_go_through_libc_names(templates: Path) -> None:
    """A preloaded library must see them: undefined symbols of the library, none of syscall()."""
    from elftools.elf.elffile import ELFFile

    with (templates / "libcuda.so").open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        wanted = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
    assert {"open", "ioctl", "mmap", "munmap", "close"} <= wanted
    assert "syscall" not in wanted
