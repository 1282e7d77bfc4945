"""What programs ask of the driver (programs/seen_calls.c of tests/gpu/enforce), and what a guard would make of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from nvc.guard.requests import ESCAPES, REFUSED, UVM, UVM_FIRST, UVM_LAST
from tests.support.native import CHECKOUT
from tests.support.nv_numbers import NUMBERS

RM = CHECKOUT / "native/rm"
SEEN = CHECKOUT / "native/test/rm_seen.h"
NO_ROW = "no row"
#: Kinds without rows of their own.
NO_REQUESTS = ("heap", "other", "share", "inherited")


@dataclass(frozen=True, order=True)
class Request:
    """A kind of request. what: escape, class, control, heap, uvm or other. size: of its struct or params, in bytes.

    what share or inherited: a policy of sharing memory, its type and access mask.
    """

    what: str
    number: int
    size: int
    node: str

    @staticmethod
    def of(line: str) -> tuple[Request, int]:
        """From a line of seen_calls, and how often it was made."""
        what, number, size, count, *node = line.split()
        return Request(what, int(number, 16), int(size), node[0] if node else ""), int(count)

    def __str__(self) -> str:
        return f"{self.what} {self.number:#x} ({self.size} bytes, {self.node})"


@cache
def kinds(what: str) -> dict[int, str]:
    """Number -> kind of its row in native/rm, of all branches. what: class or control."""
    texts = ("abi_535.c", "abi_branches.c") if what == "class" else ("abi_controls.h", "abi_branches.c")
    found: dict[int, str] = {}
    for text in texts:
        for word, kind in re.findall(rf"\{{\s*(\w+),\s*{what.upper()}_(\w+),", (RM / text).read_text()):
            found.setdefault(int(word, 16) if word.startswith("0x") else NUMBERS[word], kind.lower())
    return found


def verdict(request: Request) -> str:
    """What becomes of it under a guard: a word of the tables; ``NO_ROW`` and "forbidden" are refused."""
    if request.what in ("class", "control"):
        return kinds(request.what).get(request.number, NO_ROW)
    if request.what == "escape":
        rows = {number: (what, sizes) for number, _, sizes, what, _ in ESCAPES}
        what, sizes = rows.get(request.number, (NO_ROW, ()))
        # Another size is refused by the driver itself.
        return "another size" if sizes and 0 not in sizes and request.size not in sizes else what
    if request.what == "uvm":
        found = {number: what for number, _, what, _ in UVM}.get(request.number)
        return found or (REFUSED if UVM_FIRST <= request.number <= UVM_LAST else NO_ROW)
    if request.what == "heap":
        return "handled" if request.number in (2, 3, 5, 6, 14) else REFUSED
    return "not covered"


def is_refused(request: Request) -> bool:
    return verdict(request) in (NO_ROW, REFUSED, "forbidden")


@cache
def seen_before() -> frozenset[tuple[str, int]]:
    """(what, number) of native/test/rm_seen.h."""
    found = set()
    for name, body in re.findall(r"seen_(\w+)\[\](?:\[2\])? = \{(.*?)\n\};", SEEN.read_text(), re.S):
        what = {"escapes": "escape", "classes": "class", "controls": "control", "uvm": "uvm"}[name]
        pattern = r"\{\s*(0x\w+)," if what in ("escape", "control") else r"(0x\w+)"
        found |= {(what, int(word, 16)) for word in re.findall(pattern, body)}
    return frozenset(found)


def rows_for_header(requests: Iterable[Request]) -> list[str]:
    """Of what was never seen before: entries for native/test/rm_seen.h, sorted."""
    new = {one for one in requests if (one.what, one.number) not in seen_before() and one.what not in NO_REQUESTS}
    lines = []
    for one in sorted(new):
        text = f"{{{one.number:#x}, {one.size}}}" if one.what in ("escape", "control") else f"{one.number:#x}"
        lines.append(f"{one.what} {text}, {verdict(one)}")
    return sorted(set(lines))
