"""syscall(2) and functions of libraries by ctypes: what ``nvc.linux._raw`` does, where that was not built."""

from __future__ import annotations

import ctypes
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Argument = int | bytes | bytearray | None

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_MAX_ARGUMENTS = 6


def call(number: int, *arguments: Argument) -> int:
    """The result of the system call ``number``, or minus errno. Buffers are passed by address, None as 0."""
    if len(arguments) > _MAX_ARGUMENTS:
        raise TypeError("a call takes a number and up to 6 arguments")
    words = _words(arguments)
    ctypes.set_errno(0)
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    return -ctypes.get_errno() or result if result == -1 else result


def load(name: str) -> int:
    """The handle of a shared library, loaded for good (RTLD_NOW).

    Raises OSError with dlerror's text and no errno, which is all that glibc tells.
    """
    handle: int = ctypes.CDLL(name, mode=os.RTLD_NOW)._handle
    return handle


def symbol(library: int, name: str) -> int:
    """The address of a library's symbol, 0 where it has none."""
    if not library:
        raise ValueError("no library")
    _libc.dlsym.restype = ctypes.c_void_p
    return _libc.dlsym(ctypes.c_void_p(library), name.encode()) or 0


def invoke(address: int, *arguments: Argument) -> int:
    """The result, as a word, of the function at an address. Arguments as for ``call``."""
    if len(arguments) > _MAX_ARGUMENTS:
        raise TypeError("a call takes a number and up to 6 arguments")
    if not address:
        raise ValueError("no function")
    function = ctypes.CFUNCTYPE(ctypes.c_long)(address)
    result: int = function(*_words(arguments))
    return result


def text(address: int) -> bytes:
    """The bytes before the null at an address; none for 0."""
    return ctypes.string_at(address) if address else b""


def address(buffer: bytearray) -> int:
    """The address of a bytearray; valid while it exists and keeps its length."""
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def standby(orders: bytes, filter: bytes, ranges: bytes) -> int:
    """Wait to become a program, without this process's memory (native/syscall/standby.h): not available here."""
    return -errno.ENOSYS


def _words(arguments: Sequence[Argument]) -> list[object]:
    # Plain ints would be passed as C int: upper halves of 64-bit arguments would be lost. All six words are given,
    # as by the extension, so that none is a stale register.
    words = [_word(argument) for argument in arguments]
    return words + [ctypes.c_long(0)] * (_MAX_ARGUMENTS - len(words))


def _word(argument: Argument) -> object:
    if argument is None:
        return ctypes.c_long(0)
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, bytearray):
        return (ctypes.c_char * len(argument)).from_buffer(argument)
    if isinstance(argument, bytes):
        return argument
    raise TypeError(f"not a system call's argument: {type(argument).__name__}")
