"""Which drivers the preloaded library knows: those whose interface native/rm has tables for (``rm_abi_find``).

tests/native/test_abi.py asks rm the same questions.
"""

from __future__ import annotations

#: The first branch with a table, and the first number that no branch's covers: 595 and the next four.
FIRST, BEYOND = 535, 600
_DIGITS = frozenset("0123456789")


def knows(version: str) -> bool:
    """Whether the library holds a share by the driver's own interface with this version ("580.159.04")."""
    parts = version.split(".")
    if len(parts) > 3 or not all(part and len(part) <= 6 and _DIGITS.issuperset(part) for part in parts):
        return False
    return FIRST <= int(parts[0]) < BEYOND
