"""A classic BPF machine for seccomp filters: what the kernel would answer to a call (linux/filter.h, seccomp.h)."""

from __future__ import annotations

import struct

ACTIONS = {
    0x7FFF0000: "allow",
    0x7FC00000: "notify",
    0x00050000: "errno",
    0x80000000: "kill",
    0x00000000: "kill-thread",
}
X86_64, I386 = 0xC000003E, 0x40000003


def run(program: bytes, arch: int, number: int, arguments: tuple[int, ...]) -> str:
    """The action for one call, by name. ``program``: struct sock_filter[], as seccomp_export_bpf writes it."""
    return _decide(program, arch, number, arguments)[0]


def steps(program: bytes, arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """How many instructions decide about the call."""
    return _decide(program, arch, number, arguments)[1]


def _decide(program: bytes, arch: int, number: int, arguments: tuple[int, ...]) -> tuple[str, int]:
    data = struct.pack(
        "<iIQ6Q", number if number < 1 << 31 else number - (1 << 32), arch, 0, *(*arguments, *[0] * 6)[:6]
    )
    code_of = [struct.unpack_from("<HBBI", program, offset) for offset in range(0, len(program), 8)]
    accumulator, place, scratch = 0, 0, [0] * 16
    for made in range(1, len(code_of) + 1):
        code, jump_true, jump_false, constant = code_of[place]
        place += 1
        if code == 0x20:  # LD | W | ABS
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:  # ALU | AND | K
            accumulator &= constant
        elif code == 0x05:  # JMP | JA
            place += constant
        elif code in (0x15, 0x25, 0x35, 0x45):  # JMP | JEQ, JGT, JGE, JSET
            holds = {
                0x15: accumulator == constant,
                0x25: accumulator > constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }[code]
            place += jump_true if holds else jump_false
        elif code == 0x02:  # ST
            scratch[constant] = accumulator
        elif code == 0x60:  # LD | MEM
            accumulator = scratch[constant]
        elif code == 0x06:  # RET
            return ACTIONS[constant & 0xFFFF0000], made
        else:
            raise AssertionError(f"instruction {code:#x} is not known here")
    raise AssertionError("the filter does not end")
