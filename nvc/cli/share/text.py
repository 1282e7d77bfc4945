"""The table of ``share ls``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.share.model import CAP_WHOLE, DEFAULT_WEIGHT
from nvc.share.spec import format_cap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.share.view import ShareRow

HEADINGS = (
    "CONTAINER",
    "NAME",
    "GPU",
    "MEMORY",
    "CAP",
    "WEIGHT",
    "PRIORITY",
    "WAIT",
    "PROCESSES",
    "FROZEN",
    "GUARD",
    "NOTES",
)
_CONTAINER, _GPU = 12, 12
_SECOND = 10**9


def table(rows: Sequence[ShareRow], *, verbose: bool) -> str:
    """Aligned columns, a line each; verbose: whole names, and every process with its pids below."""
    cells = [HEADINGS, *(_cells(row, verbose=verbose) for row in rows)]
    if not any(row.latency for row in rows):
        place = HEADINGS.index("WAIT")
        cells = [(*line[:place], *line[place + 1 :]) for line in cells]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = []
    for number, line in enumerate(cells):
        lines.append("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if verbose and number:
            for process in rows[number - 1].processes:
                where = f"host pid {process.host_pid}" if process.host_pid else "host pid not found"
                lines.append(f"    {process.pid} {process.name}: {size(process.memory)}, {where}")
    return "\n".join(lines)


def size(count: int) -> str:
    """Bytes for people: MiB below 10 GiB, else GiB with one decimal."""
    return f"{count >> 20}Mi" if count < 10 << 30 else f"{count / (1 << 30):.1f}Gi"


def wait(bound_us: int, latency_us: int) -> str:
    """How long a service waits at most, of how long it may, in milliseconds."""
    if not latency_us:
        return "-"
    return f"{bound_us / 1000:.3g}/{latency_us / 1000:.3g}ms" if bound_us else f"-/{latency_us / 1000:.3g}ms"


def _cells(row: ShareRow, *, verbose: bool) -> tuple[str, ...]:
    return (
        row.container if verbose else row.container[:_CONTAINER],
        row.name or "-",
        row.gpu if verbose else row.gpu[:_GPU],
        f"{size(row.used)}/{size(row.limit) if row.limit else '-'}{_mark('mem', row)}",
        (format_cap(row.cap) if row.cap < CAP_WHOLE else "-") + _mark("cap", row),
        f"{row.weight or DEFAULT_WEIGHT}{_mark('weight', row)}",
        row.priority,
        wait(row.bound, row.latency),
        str(len(row.processes)),
        "suspended"
        if row.suspended
        else "paused"
        if row.paused
        else (f"{row.frozen_ns / _SECOND:.1f}s" if row.frozen_ns else "-"),
        row.guard or "-",
        "; ".join((*row.notes, *_settings(row))),
    )


def _settings(row: ShareRow) -> list[str]:
    """Those without a column."""
    found = [f"mem={size(row.request)}..{size(row.most)}"] if row.request else []
    found += [f"idle={row.idle}s"] if row.idle else []
    return [*found, *(["oversubscribe"] if row.oversubscribe else [])]


def _mark(word: str, row: ShareRow) -> str:
    """A star at what the container lowered itself."""
    return "*" if word in row.own else ""
