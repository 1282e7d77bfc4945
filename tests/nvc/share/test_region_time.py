"""Regions whose containers try to keep their readers busy."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

import pytest

from nvc.formats import FormatError
from nvc.share import region

#: More than a busy machine takes for 40 slots.
SECONDS = 30.0
# All slots are 8,192 reads of the file, which no machine makes in this time.
TOO_SHORT = 0.003


def hostile(path: Path, slots: int) -> int:
    """All slots are used by one living process, whose pid is returned, and no list of channels holds still."""
    slot = bytearray(region.PAGE)
    struct.pack_into("<I", slot, 0, 1)
    struct.pack_into("<II", slot, region.CHANNEL_VERSION, 1, 1)
    with path.open("wb") as file:
        file.write(
            region.HEADER.pack(region.MAGIC, region.VERSION, region.PAGE, region.SLOTS, slots, 0).ljust(4096, b"\0")
        )
        for _ in range(slots):
            file.write(slot)
        file.truncate(region.SIZE)
    holder = os.open(path, os.O_RDWR)
    fcntl.fcntl(holder, region.F_OFD_SETLK, struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, region.LOCKS, slots, 0))
    return holder


@pytest.mark.parametrize("slots", [region.SLOTS, 40])
def test_a_region_is_read_in_time_or_not_at_all(tmp_path: Path, slots: int) -> None:
    holder = hostile(tmp_path / "region", slots)
    reader = os.open(tmp_path / "region", os.O_RDONLY)
    begin = time.monotonic()
    try:
        if slots == region.SLOTS:
            with pytest.raises(FormatError, match="not read in time"):
                region.read(reader, 1, TOO_SHORT)
        else:
            assert len(region.read(reader, 1, SECONDS).slots) == slots
    finally:
        os.close(reader)
        os.close(holder)
    assert time.monotonic() - begin < 2 * SECONDS
