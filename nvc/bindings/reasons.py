"""Why a tenant's call of the driver was refused, or let pass: the words of logs, notes and metrics."""

from __future__ import annotations

#: enum rm_reason of native/rm/rm.h, in its order. tests/nvc/share/test_share_abi.py compares the two.
REASONS = (
    "ok",
    "over-quota",
    "unknown-escape",
    "unknown-class",
    "unknown-control",
    "forbidden-escape",
    "forbidden-class",
    "forbidden-control",
    "scheduling-control",
    "bad-size",
    "bad-pointer",
    "too-many",
    "unreachable",
    "toctou-killed",
    "unresponsive",
    "foreign-process",
    "edge-late",
    "unknown-object",
    "no-memory",
    "unknown-outcome",
    "foreign-file",
)
OVER_QUOTA = REASONS[1]


def word(reason: int) -> str:
    """The word for a number of enum rm_reason; one that is not known here is named by its number."""
    return REASONS[reason] if reason < len(REASONS) else f"reason-{reason}"
