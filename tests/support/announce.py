"""nvc/guard/filter.py's rules as a classic BPF program, for tests that have no container runtime to compile them."""

from __future__ import annotations

import struct
from typing import Any

from nvc.guard.filter import NOTIFY, merge

_NUMBERS = {0xC000003E: {"ioctl": 16, "mmap": 9}, 0x40000003: {"ioctl": 54, "mmap": 90, "mmap2": 192}}
_NATIVE = 0xC000003E
_X32 = 0x40000000
_ALLOW, _ANNOUNCE, _KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
_LOAD, _AND, _EQUAL, _BITS, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
_ARCH, _NUMBER, _ARGUMENTS = 4, 0, 16


def program() -> bytes:
    """struct sock_filter[]: everything is allowed, but for what ``merge`` announces; x32 ends the process."""
    rules = [rule for rule in merge(None, "/x", "", "SCMP_ARCH_X86_64")["syscalls"] if rule["action"] == NOTIFY]
    steps: list[tuple[int, int, int, int]] = []
    for arch, numbers in _NUMBERS.items():
        part: list[tuple[int, int, int, int]] = []
        if arch == _NATIVE:
            part += [(_LOAD, 0, 0, _NUMBER), (_BITS, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
        for rule in rules:
            for name in rule["names"]:
                if name in numbers:
                    part += _rule(numbers[name], rule["args"])
        part.append((_RETURN, 0, 0, _ALLOW))
        # Conditional jumps reach 255 steps only: an unconditional one goes over the part.
        steps += [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (0x05, 0, 0, len(part)), *part]
    steps.append((_RETURN, 0, 0, _KILL))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def _rule(number: int, arguments: list[dict[str, Any]]) -> list[tuple[int, int, int, int]]:
    """Announce a call of this number whose masked arguments are all as they should be; otherwise fall through."""
    tests = [(_NUMBER, 0xFFFFFFFF, number)]
    for one in arguments:
        place = _ARGUMENTS + 8 * one["index"]
        for half in (0, 1):
            mask, value = (one[key] >> 32 * half & 0xFFFFFFFF for key in ("value", "valueTwo"))
            if mask:
                tests.append((place + 4 * half, mask, value))
    steps: list[tuple[int, int, int, int]] = [(_RETURN, 0, 0, _ANNOUNCE)]
    for place, mask, value in reversed(tests):
        steps = [(_LOAD, 0, 0, place), (_AND, 0, 0, mask), (_EQUAL, 0, len(steps), value), *steps]
    return steps
