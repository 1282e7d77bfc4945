"""Bytes in, Records out: parsers of foreign formats. No I/O."""

from __future__ import annotations


class FormatError(ValueError):
    """Foreign data does not have the format it should have.

    what: the format ("ld.so.cache", "ELF", "mountinfo", ...). place: where in the data ("entry 12", "line 3").
    """

    def __init__(self, what: str, place: str, reason: str) -> None:
        super().__init__(f"{what}, {place}: {reason}")
        self.what = what
        self.place = place
        self.reason = reason
