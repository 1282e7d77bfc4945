"""Flags of a limits file: the pause is a share's, graphics is the tenant's own."""

from __future__ import annotations

import struct

import pytest

from nvc.share import limits
from nvc.share.limits import Limits, with_shares
from nvc.share.model import ResolvedGpu

LIMITS = Limits((ResolvedGpu("GPU-b8058b66-3950-5eb2-94c2-df90166ee487", -1, 1 << 30),), driver="580.1")


@pytest.mark.parametrize("graphics", [False, True])
@pytest.mark.parametrize("paused", [False, True])
def test_each_flag_is_a_bit_of_its_own(paused: bool, graphics: bool) -> None:
    said = LIMITS.replace(paused=paused, graphics=graphics)
    content = limits.encode(said)
    assert struct.unpack_from("<I", content, limits.BODY) == (limits.PAUSED * paused | limits.GRAPHICS * graphics,)
    assert limits.decode(content) == said


def test_graphics_are_not_made_by_default() -> None:
    assert not LIMITS.graphics
    assert not limits.decode(limits.encode(LIMITS)).graphics


@pytest.mark.parametrize("graphics", [False, True])
def test_another_share_changes_the_pause_and_not_graphics(graphics: bool) -> None:
    own = LIMITS.replace(graphics=graphics)
    found = with_shares(own, LIMITS.replace(paused=True, graphics=not graphics))
    assert (found.paused, found.graphics) == (True, graphics)
