"""nvc/guard/filter.py's rules as a classic BPF program, for tests that have no container runtime to compile them."""

from __future__ import annotations

import struct
from typing import Any

from nvc.guard.filter import merge
from nvc.guard.profile import NOTIFY

_NUMBERS = {0xC000003E: {"ioctl": 16, "mmap": 9}, 0x40000003: {"ioctl": 54, "mmap": 90, "mmap2": 192}}
_NATIVE = 0xC000003E
_X32 = 0x40000000
_ALLOW, _ANNOUNCE, _KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
_LOAD, _AND, _EQUAL, _BITS, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x06
_ARCH, _NUMBER, _ARGUMENTS = 4, 0, 16
_ALL = 0xFFFFFFFF


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
    """Announce a call of this number whose arguments are all as they should be; otherwise fall through."""
    tests = [(_NUMBER, _ALL, number, True)]
    others = []
    for one in arguments:
        place, value, mask = _ARGUMENTS + 8 * one["index"], one["value"], _ALL << 32 | _ALL
        if one["op"] == "SCMP_CMP_MASKED_EQ":
            mask, value = value, one["valueTwo"]
        for half in (0, 1):
            test = (place + 4 * half, mask >> 32 * half & _ALL, value >> 32 * half & _ALL)
            if one["op"] == "SCMP_CMP_NE":
                others.append((*test, False))
            elif test[1]:
                tests.append((*test, True))
    # A number is another one when one of its halves is.
    return [step for other in others or [None] for step in _announce([*tests, other] if other else tests)]


def _announce(tests: list[tuple[int, int, int, bool]]) -> list[tuple[int, int, int, int]]:
    steps: list[tuple[int, int, int, int]] = [(_RETURN, 0, 0, _ANNOUNCE)]
    for place, mask, value, is_equal in reversed(tests):
        past = len(steps)
        jump = (_EQUAL, 0, past, value) if is_equal else (_EQUAL, past, 0, value)
        steps = [(_LOAD, 0, 0, place), (_AND, 0, 0, mask), jump, *steps]
    return steps
