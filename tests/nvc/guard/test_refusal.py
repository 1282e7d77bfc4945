"""The filter of a container without a GPU: NVIDIA's requests by every entry, and no other."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest

from nvc.guard import refusal
from nvc.guard.profile import ALLOW
from nvc.guard.requests import ESCAPES, PLAIN, UVM
from tests.nvc.guard.test_filter import DEFAULT_DENY, IOCTL, IOCTL32, NATIVE, compile_profile
from tests.support import cbpf

#: Architecture word and number of ioctl by every entry of x86-64 and aarch64; old kernels took 16 and 514 by both.
ENTRIES = [
    pytest.param(cbpf.X86_64, 16, id="64-bit"),
    pytest.param(cbpf.X86_64, 0x40000000 | 514, id="x32"),
    pytest.param(cbpf.X86_64, 0x40000000 | 16, id="x32, the first number"),
    pytest.param(cbpf.X86_64, 514, id="64-bit, x32's number"),
    pytest.param(cbpf.I386, 54, id="32-bit"),
    pytest.param(0xC00000B7, 29, id="aarch64"),
    pytest.param(0x40000028, 54, id="arm"),
]
#: Of the resource manager, however type byte and direction are written.
DECIDED = [
    kind << 8 | direction << 30 | size << 16 | number
    for number, _, sizes, what, _ in ESCAPES
    if what != PLAIN and number not in (0xD8, 0x41)
    for size, kind, direction in itertools.product(sizes, (0, ord("F"), ord("X"), 0xFF), range(4))
]
ALL_OF_UVM = [number for number, *_ in UVM] + [8, 200, 511]
#: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, TCGETS2, SIOCGIFCONF, BLKGETSIZE64, FS_IOC_GETFLAGS, FIBMAP,
#: FIGETBSZ, KVM_RUN, TUNSETVNETHDRSZ, DRM_IOCTL_I915_GEM_MMAP, DRM_IOCTL_XE_GEM_CREATE, USBDEVFS_SUBMITURB, 7 and 512.
OTHERS = [0x5401, 0x5413, 0x541B, 0x5421, 0x5451, 0x802C542A, 0x8912, 0x80081272, 0x80086601, 1, 2,
          0xAE80, 0x400454D8, 0xC028645E, 0xC0386441, 0x8038550A, 7, 512]  # fmt: skip


@pytest.mark.parametrize(("arch", "number"), ENTRIES)
def test_every_request_that_makes_something_is_refused_by_every_entry(arch: int, number: int) -> None:
    program = refusal.program()
    for request in (*DECIDED, *ALL_OF_UVM):
        for upper in (0, 0xFFFFFFFF00000000):  # of which the kernel takes no bit
            assert cbpf.run(program, arch, number, (3, upper | request, 0)) == "errno", hex(request)


@pytest.mark.parametrize(("arch", "number"), ENTRIES)
def test_others_are_as_before(arch: int, number: int) -> None:
    program = refusal.program()
    for request in OTHERS:
        assert cbpf.run(program, arch, number, (3, request, 0)) == "allow", hex(request)
    for other in (0, number - 1, number + 1, 59):
        if (arch, other) != (cbpf.X86_64, 16):
            assert cbpf.run(program, arch, other, (3, 0xC030462B, 0)) == "allow", other


def test_the_answer_is_that_of_a_guard_for_another_containers_file() -> None:
    codes = {constant for code, _, _, constant in struct.iter_unpack("=HBBI", refusal.program()) if code == 0x06}
    assert codes == {0x7FFF0000, 0x00050000 | 13}


@pytest.mark.parametrize("profile", [None, DEFAULT_DENY, {"defaultAction": ALLOW, "architectures": [NATIVE]}])
def test_a_profile_refuses_the_same(profile: dict[str, Any] | None) -> None:
    merged = refusal.merge(profile, NATIVE)
    assert {rule.get("errnoRet") for rule in merged["syscalls"] if rule["action"] == "SCMP_ACT_ERRNO"} == {13}
    program = compile_profile(merged)
    entries = [(cbpf.X86_64, IOCTL)]
    if "SCMP_ARCH_X86" in merged["architectures"]:
        entries.append((cbpf.I386, IOCTL32))
    for arch, number in entries:
        for request in (*DECIDED, *ALL_OF_UVM):
            assert cbpf.run(program, arch, number, (3, request, 0)) == "errno", hex(request)
        for request in OTHERS:
            assert cbpf.run(program, arch, number, (3, request, 0)) == "allow", hex(request)
