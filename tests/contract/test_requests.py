"""The table of requests (nvc/guard/requests.py) against the rows of native/rm, and the page for readers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nvc.guard.requests import ANSWERED, ESCAPES, HANDLED, PLAIN, REFUSED, UVM, UVM_FIRST, UVM_LAST, announced_uvm
from tests.support.native import CHECKOUT
from tests.support.nv_numbers import NUMBERS, SIZES

RM = CHECKOUT / "native/rm"
PAGE = CHECKOUT / "docs/reference/driver-requests.md"
#: A row's kind in C -> what becomes of the request.
KINDS = {"ESCAPE_PLAIN": PLAIN, "ESCAPE_DESCRIPTOR": PLAIN, "ESCAPE_FORBIDDEN": REFUSED, "ESCAPE_ANSWERED": ANSWERED}
#: Kinds that say plain of a call that is announced: whatever it holds, the guard makes it on a copy.
PERFORMED = {"RM_SHARE"}


def rows() -> dict[str, tuple[str, set[int]]]:
    """NV_ESC_* without its beginning -> kind, and sizes of its struct in all branches, of native/rm."""
    text = (RM / "abi_535.c").read_text() + (RM / "abi_branches.c").read_text()
    found: dict[str, tuple[str, set[int]]] = {}
    for name, kind, *words in re.findall(r"NV_ESC_(\w+), (ESCAPE_\w+), ([^,]+), ([^,]+), (\d)", text):
        before = found.get(name, ("", set[int]()))
        sizes = {0} if words[2] == "1" else {size_of(word) for word in words[:2]} - {0}
        found[name] = (kind if before[0] in ("", "ESCAPE_UNKNOWN") else before[0], before[1] | sizes)
    return found


def size_of(word: str) -> int:
    return int(word) if word.isdigit() else SIZES[word.removeprefix("sizeof (").removesuffix(")")]


def test_each_escape_has_the_same_row_in_c() -> None:
    found = rows()
    assert found.keys() == {name for _, name, *_ in ESCAPES}
    for number, name, sizes, what, _ in ESCAPES:
        assert NUMBERS[f"NV_ESC_{name}"] == number, name
        assert KINDS.get(found[name][0], HANDLED) == what or name in PERFORMED, name
        # What is announced in a size that rm does not take would be continued.
        assert found[name][1] == set(sizes), name


def test_uvms_requests_are_the_same_in_c() -> None:
    text = (RM / "abi.c").read_text()
    body = text[text.index("bool rm_abi_knows_uvm") : text.index("enum rm_uvm_kind rm_abi_uvm_kind")]
    listed = re.search(r"known\[\] = \{([^}]*)\}", body)
    assert listed
    known = {int(word) for word in re.findall(r"\d+", listed[1])}
    later = {int(word) for word in re.findall(r"request == (\d+)", body)}
    named = {number for number, *_ in UVM if number < UVM_LAST}
    assert known | later == named
    header = (RM / "abi.h").read_text()
    assert f"UVM_ANNOUNCED_FIRST {UVM_FIRST}u" in header
    assert f"UVM_ANNOUNCED_END {UVM_LAST + 1}u" in header
    answered = {number for number, _, what, _ in UVM if what == ANSWERED}
    assert answered == {NUMBERS["UVM_CLEAR_ALL_ACCESS_COUNTERS"]}
    assert set(announced_uvm()) == set(range(UVM_FIRST, UVM_LAST + 1)) - named | answered


@pytest.mark.parametrize("table", [ESCAPES, UVM], ids=["escapes", "uvm"])
def test_the_page_has_every_request(table: tuple[tuple[Any, ...], ...]) -> None:
    """One row for what becomes of a request and why, with all requests of which that is so."""
    text, rows = PAGE.read_text(), dict[tuple[str, str], list[str]]()
    for number, name, *_, what, why in table:
        shown = f"0x{number:02X}" if table is ESCAPES or number > UVM_LAST else str(number)
        rows.setdefault((what, why), []).append(f"{shown} {name}")

    for (what, why), names in rows.items():
        assert f"| {what} | {', '.join(names)} | {why} |\n" in text
