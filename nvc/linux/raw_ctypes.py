"""syscall(2) through ctypes: what ``nvc.linux._raw`` (native/syscall) does, where that was not built."""

from __future__ import annotations

import ctypes
import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    Argument = int | bytes | bytearray | None

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_MAX_ARGUMENTS = 6


def call(number: int, *arguments: Argument) -> int:
    """The result of the system call ``number``, or minus errno. Buffers are passed by address, None as 0."""
    if len(arguments) > _MAX_ARGUMENTS:
        raise TypeError("call takes a number and up to 6 arguments")
    # Plain ints would be passed as C int: upper halves of 64-bit arguments would be lost. All six words are given,
    # as by the extension, so that none is a stale register.
    words = [_word(argument) for argument in arguments]
    words += [ctypes.c_long(0)] * (_MAX_ARGUMENTS - len(words))
    ctypes.set_errno(0)
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    return -ctypes.get_errno() or result if result == -1 else result


def address(buffer: bytearray) -> int:
    """The address of a bytearray; valid while it exists and keeps its length."""
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def standby(orders: bytes, filter: bytes, ranges: bytes) -> int:
    """Wait to become a program, without this process's memory (native/syscall/standby.h): not available here."""
    return -errno.ENOSYS


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
