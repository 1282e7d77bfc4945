"""Records that the guard cannot be without are made by tenant_allocate (guard/tenant.h), or the container ends."""

from __future__ import annotations

import re
from pathlib import Path

GUARD = Path("native/guard")
#: Allocations that may fail, by file: something is refused then, or stays as it was, before the driver is called.
MAY_FAIL = {
    "attached.c": 2,
    "driver_usage.c": 1,
    "dup_probe.c": 1,
    "phase_thread.c": 2,
    "tenant.c": 2,  # a tenant that does not begin, and tenant_allocate itself
}


def test_what_may_not_be_missing_is_made_by_tenant_allocate() -> None:
    call = re.compile(r"\b(?:malloc|calloc|realloc|reallocarray|strdup|aligned_alloc) \(")
    found = {file.name: len(call.findall(file.read_text())) for file in GUARD.glob("*.c")}
    assert {name: count for name, count in found.items() if count} == MAY_FAIL
    assert sum(file.read_text().count("tenant_allocate (") for file in GUARD.glob("*.c")) > len(MAY_FAIL)
