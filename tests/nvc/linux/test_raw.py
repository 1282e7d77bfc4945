"""syscall(2), by the extension module and by ctypes: two programs, one behaviour."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from typing import Any

import pytest

from nvc.linux import const, raw_ctypes, syscalls
from nvc.linux.syscalls import SyscallError
from tests.support import native

#: getpid, read, write, prctl: calls that no wrapper of ours uses by number, so that they are in no table.
NUMBERS = {"x86_64": (39, 0, 1, 157), "aarch64": (172, 63, 64, 167)}
GETPID, READ, WRITE, PRCTL = NUMBERS.get(platform.machine(), (-1,) * 4)


@pytest.fixture(params=["extension", "ctypes"])
def raw(request: pytest.FixtureRequest) -> Any:
    return native.extension() if request.param == "extension" else raw_ctypes


def test_result(raw: Any) -> None:
    assert raw.call(GETPID) == raw.call(GETPID, 1, None, 3, 4, 5, 6) == os.getpid()


def test_failure_is_minus_errno(raw: Any) -> None:
    assert raw.call(READ, -1, bytearray(1), 1) == -errno.EBADF
    assert raw.call(100000) == -errno.ENOSYS


def test_buffers_are_read_and_written_in_place(raw: Any) -> None:
    read, write = os.pipe()
    try:
        buffer = bytearray(b"....")
        assert raw.call(WRITE, write, b"ab\0d", 4) == 4
        assert raw.call(WRITE, write, bytearray(b"ef"), 2) == 2
        assert raw.call(READ, read, buffer, 4) == 4
        assert buffer == b"ab\0d"
        assert raw.call(READ, read, raw.address(buffer) + 2, 2) == 2
        assert buffer == b"abef"
        # Nothing holds it any more: a bytearray that is exported cannot change its length.
        buffer += b"longer"
    finally:
        os.close(read)
        os.close(write)


def test_words_are_64_bits_wide(raw: Any) -> None:
    """The upper half of an int reaches the kernel, and -1 is the same word as 2**64 - 1."""
    assert raw.call(READ, 1 << 40, None, 0) in (-errno.EBADF, 0)
    assert raw.call(PRCTL, const.PR_SET_PDEATHSIG, 1 << 32, 0, 0, 0) == -errno.EINVAL
    assert raw.call(READ, (1 << 64) - 1, None, 0) == raw.call(READ, -1, None, 0) == -errno.EBADF


def test_addresses(raw: Any) -> None:
    buffer = bytearray(struct.pack("=I", 0x12345678))
    assert ctypes.c_uint32.from_address(raw.address(buffer)).value == 0x12345678
    with pytest.raises((TypeError, BufferError)):
        raw.address(b"constant")


@pytest.mark.parametrize("arguments", [(), (0, 1, 2, 3, 4, 5, 6, 7), (0, "text"), (0, 1.5)])
def test_what_is_no_call(raw: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        raw.call(*arguments)


def test_failing_conversion_lets_go_of_buffers(raw: Any) -> None:
    buffer = bytearray(4)
    with pytest.raises(TypeError):
        raw.call(GETPID, buffer, "text")
    buffer += b"longer"


def test_functions_of_a_library(raw: Any) -> None:
    """Words both ways, a buffer by its address, and the text at an address."""
    library = raw.load("libc.so.6")
    length, copied = raw.symbol(library, "strlen"), bytearray(8)

    assert raw.invoke(length, b"four\0more") == 4
    assert raw.invoke(raw.symbol(library, "labs"), -(1 << 40)) == 1 << 40
    assert raw.invoke(raw.symbol(library, "memcpy"), copied, b"abcdefgh", 8) == raw.address(copied)
    assert copied == b"abcdefgh"
    assert raw.text(raw.invoke(raw.symbol(library, "strchr"), bytearray(b"no: yes\0"), ord(":")) + 1) == b" yes"
    assert raw.text(0) == b""


def test_a_library_or_a_symbol_that_is_missing(raw: Any) -> None:
    with pytest.raises(OSError, match=r"libmissing\.so\.7: cannot open shared object file") as caught:
        raw.load("libmissing.so.7")
    assert caught.value.errno is None
    assert raw.symbol(raw.load("libc.so.6"), "no_such_function") == 0


@pytest.mark.parametrize("arguments", [(), (0,), (0, "text"), (1, "text"), (1, 1, 2, 3, 4, 5, 6, 7)])
def test_what_is_no_function(raw: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError)):
        raw.invoke(*arguments)
    with pytest.raises(ValueError, match="no library"):
        raw.symbol(0, "strlen")


def test_limits_are_those_of_the_module_resource() -> None:
    kinds = (
        *("RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_CORE"),
        *("RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_AS"),
    )
    for kind in kinds:
        known = resource.getrlimit(getattr(resource, kind))
        infinite = {resource.RLIM_INFINITY: const.NO_LIMIT}
        assert syscalls.prlimit(getattr(const, kind)) == tuple(infinite.get(limit, limit) for limit in known)

    soft, hard = syscalls.prlimit(const.RLIMIT_CORE)
    try:
        assert syscalls.prlimit(const.RLIMIT_CORE, (0, hard)) == (soft, hard)
        assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
    finally:
        syscalls.prlimit(const.RLIMIT_CORE, (soft, hard))
    with pytest.raises(SyscallError, match="prlimit64"):
        syscalls.prlimit(const.RLIMIT_CORE, (2, 1))
