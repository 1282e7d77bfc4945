"""Xid events in the kernel's log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.formats.xid import Xid, parse

BUS = "00000000:3b:00.0"


def kernel(text: str, priority: int = 4) -> bytes:
    return f"{priority},1337,5140900000,-;{text}\n SUBSYSTEM=pci\n".encode()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE",
            Xid(BUS, 31, 4711, "python3", "Ch 00000008, intr 00000000. MMU Fault: ENGINE"),
        ),
        (
            "NVRM: Xid (PCI:0000:3B:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception",
            Xid(BUS, 13, 0, "<unknown>", "Graphics SM Warp Exception"),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=a, b, channel 0x00000018",
            Xid(BUS, 43, 7, "a", "b, channel 0x00000018"),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
            Xid(BUS, 79, 0, "", "GPU has fallen off the bus."),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 94, Contained: SM (0x1). RST: No, D-RST: No",
            Xid(BUS, 94, 0, "", "Contained: SM (0x1). RST: No, D-RST: No"),
        ),
        ("NVRM: Xid (PCI:00000001:3b:00.0): 63", Xid("00000001:3b:00.0", 63)),
        ("NVRM: GPU at PCI:0000:3b:00: GPU-1", None),
        ("python3: NVRM: Xid (PCI:0000:3b:00): 79", None),
    ],
)
def test_what_the_driver_says_is_read(text: str, found: Xid | None) -> None:
    assert parse(kernel(text)) == found


@pytest.mark.parametrize("priority", [8 | 4, 3 << 3 | 4])
def test_what_a_program_wrote_into_the_kernels_log_is_not(priority: int) -> None:
    """A tenant with /dev/kmsg, or a right to write to it, blames no other one."""
    assert parse(kernel("NVRM: Xid (PCI:0000:3b:00): 79, pid=1", priority)) is None
    assert parse(kernel("NVRM: Xid (PCI:0000:3b:00): 79, pid=1")) is not None


def test_a_program_chooses_its_own_name_and_nothing_else() -> None:
    found = parse(kernel("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=x, pid=1, name=, Ch 8"))
    assert found is not None and found.pid == 4711
    found = parse(kernel("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=a\x1b[2J, Ch 8"))
    assert found is not None and found.program.isprintable() and found.text.isprintable()


@given(
    st.one_of(
        st.binary(max_size=300), st.text(max_size=100).map(lambda text: kernel(f"NVRM: Xid (PCI:0000:3b:00): {text}"))
    )
)
def test_any_bytes_are_something_or_nothing(record: bytes) -> None:
    found = parse(record)
    assert found is None or (found.text.isprintable() and found.program.isprintable() and len(found.text) <= 200)
