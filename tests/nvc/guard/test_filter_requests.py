"""Which requests of NVIDIA's drivers a filter announces, and what else it does not: by the rules, and compiled."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.guard.filter import announced, cover
from nvc.guard.requests import ESCAPES, PLAIN, UVM
from tests.nvc.guard.test_filter import DEFAULT_DENY, GETPID, IOCTL, NATIVE, compile_profile, merged
from tests.support import announce, cbpf

#: What is announced, by number and size, from nv_escape.h, nv-ioctl-numbers.h and nvos.h: not taken from the table.
ANNOUNCED = {
    0x27: {56},
    0x28: {20},
    0x29: {16},
    0x2A: {32},
    0x2B: {32, 48},
    0x34: {28},
    0x35: {24},
    0x39: {32},
    0x41: {56},
    0x4A: {184},
    0x4D: {72},
    0x57: {56, 64},
    0x58: {40, 48},
    0x5F: {4024, 15412},
    0xD3: {16},
    0xD6: {8},
    0xD8: {4},
}
#: All that UVM serves, and what has the same 32 bits elsewhere: FIBMAP, FIGETBSZ, SCSI's.
UVM_PASSES = {*range(8), *range(23, 32), 33, 34, *range(37, 48), 51, *range(53, 79), 80}
#: Of terminals, sockets, files, other drivers; several have a low byte that one of NVIDIA's requests has.
OTHERS = (
    0x5401, 0x5402, 0x5403, 0x5404, 0x540B, 0x540E, 0x540F, 0x5410, 0x5413, 0x5414, 0x541B, 0x5421, 0x5422, 0x5423,
    0x5427, 0x5428, 0x5429, 0x5450, 0x5451, 0x5452, 0x5460, 0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D,
    0x80045430, 0x80045438, 0x80045439, 0x8901, 0x8910, 0x8912, 0x8913, 0x8927, 0x8929, 0x8933, 0x8942, 0x894D,
    0x8946, 0x1, 0x2, 0x5331, 0x125E, 0x1260, 0x1268, 0x80081272, 0x40086602, 0x80086601, 0xC020660B, 0x40049409,
    0x4020940D, 0x4600, 0x4602, 0x4C00, 0x4C82, 0xC0406400, 0xC0106464, 0x6409, 0xC01064B3, 0x4004667F, 0xC038AA00,
    0xC018AA3F, 0x8010AA01, 0xB701, 0xB703, 0x40049420, 0x400454CA, 0x800454D2, 0x400454D9, 0xC0045878, 0x2400,
    0x2401, 0x40082406, 0x40042408,
)  # fmt: skip


def is_announced(request: int) -> bool:
    """By what NVIDIA's drivers look at."""
    if request < 512:
        return request not in UVM_PASSES
    return (request >> 16 & 0x3FFF) in ANNOUNCED.get(request & 0xFF, ())


@given(st.sets(st.tuples(st.integers(1, 255), st.integers(0, 255)), max_size=8))
def test_a_cover_matches_every_other_number_exactly_once(pairs: set[tuple[int, int]]) -> None:
    chosen = [(mask, value & mask) for mask, value in pairs]
    covers = cover(chosen, range(7, -1, -1))
    for number in range(256):
        is_chosen = any(number & mask == value for mask, value in chosen)
        assert sum(number & mask == value for mask, value in covers) == (not is_chosen)


def test_no_request_is_announced_by_two_rules() -> None:
    """libseccomp keeps no order among rules: each number is one rule's."""
    pairs = [*announced(), *cover(announced())]
    for one, other in itertools.combinations(pairs, 2):
        assert (one[1] ^ other[1]) & one[0] & other[0], (hex(one[1]), hex(other[1]))


@pytest.fixture(scope="module", params=["unconfined", "default deny", "by hand"])
def program(request: pytest.FixtureRequest) -> bytes:
    if request.param == "by hand":
        return announce.program()
    return compile_profile(merged(DEFAULT_DENY if request.param == "default deny" else None))


def test_an_ioctl_is_announced_by_low_byte_and_size_whatever_its_type(program: bytes) -> None:
    sizes = sorted({size for several in ANNOUNCED.values() for size in several} | {0, 1, 17, 44, 0x3FFF})
    for low, size, type_byte in itertools.product(range(256), sizes, (0x46, 0x54)):
        request = 3 << 30 | size << 16 | type_byte << 8 | low
        expected = "notify" if size in ANNOUNCED.get(low, ()) else "allow"
        assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, request)) == expected, hex(request)


def test_neither_type_nor_direction_nor_the_upper_half_hides_a_request(program: bytes) -> None:
    """Attack: the driver looks at none of them."""
    for low, sizes in ANNOUNCED.items():
        for size, direction, type_byte in itertools.product(sizes, range(4), (0, 0x46, 0x54, 0x64, 0x89, 0xFF)):
            request = direction << 30 | size << 16 | type_byte << 8 | low
            for value in (request, request | 0xDEAD << 32):
                assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, value)) == "notify", hex(value)


def test_uvms_requests_are_told_by_all_their_bits(program: bytes) -> None:
    """Its number 33 shares a low byte with FIONBIO, INITIALIZE with TCGETS."""
    for number in range(512):
        expected = "allow" if number in UVM_PASSES else "notify"
        assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, number)) == expected, number
        assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, number | 1 << 32)) == expected, "the kernel takes 32 bits"
        if number < 256 and number != 0x46:
            assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, number | 0x5400)) == "allow", number
    for number in (0x30000001, 0x30000002, 2047):
        assert cbpf.run(program, cbpf.X86_64, IOCTL, (3, number)) == "allow"


def test_other_drivers_requests_are_not_announced(program: bytes) -> None:
    for request in OTHERS:
        assert not is_announced(request), hex(request)
        assert cbpf.run(program, cbpf.X86_64, IOCTL, (0, request)) == "allow", hex(request)


@given(st.integers(0, (1 << 32) - 1))
def test_any_request_is_decided_by_the_table(request: int) -> None:
    expected = is_announced(request)
    assert any(request & mask == value for mask, value in announced()) == expected


def test_the_table_has_each_number_once_and_a_reason() -> None:
    assert len({row[0] for row in ESCAPES}) == len(ESCAPES)
    assert len({row[0] for row in UVM}) == len(UVM)
    assert all(row[-1] for row in (*ESCAPES, *UVM))
    assert {row[0] for row in ESCAPES if row[3] != PLAIN} == ANNOUNCED.keys()


def test_the_filter_stays_small_and_other_system_calls_cost_nothing() -> None:
    """BPF_MAXINSNS is 4096, for all architectures together. Steps, not time: what a call that is not an ioctl costs."""
    with_two = {**DEFAULT_DENY, "architectures": [NATIVE, "SCMP_ARCH_X86"]}
    program, bare = compile_profile(merged(with_two)), compile_profile(with_two)
    assert len(program) // 8 < 1500
    for number in (GETPID, 0):
        before, after = (cbpf.steps(one, cbpf.X86_64, number, (0,)) for one in (bare, program))
        assert after <= before + 4, number
    assert cbpf.steps(program, cbpf.X86_64, IOCTL, (0, 0x5401)) < 600
    assert cbpf.steps(compile_profile(merged(None)), cbpf.X86_64, IOCTL, (0, 0x5401)) < 80
