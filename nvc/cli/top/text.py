"""The picture of ``top``: a line for each GPU, below it its shares, below them their processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from nvc.agent.view import GUARD
from nvc.cli.share.text import size, wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.agent.view import Seen, SeenGpu, SeenShare

#: Heading -> how early it gives way in a narrow window; 0: never. CONTAINER is shortened at last. NAME and WAIT are
#: there where a container has one.
COLUMNS = {
    "CONTAINER": 0,
    "NAME": 6,
    "MEMORY": 8,
    "USED/LIMIT": 0,
    "TARGET": 3,
    "ACHIEVED": 2,
    "CAP": 5,
    "WEIGHT": 7,
    "PRIORITY": 11,
    "WAIT": 10,
    "GROUPS": 10,
    "SLICE": 12,
    "FROZEN": 4,
    "DENIED": 1,
    "ENFORCER": 9,
}
_RIGHT = {"USED/LIMIT", "TARGET", "ACHIEVED", "CAP", "WEIGHT", "WAIT", "GROUPS", "SLICE", "FROZEN", "DENIED"}
_BAR = 12
_NAME, _ENGINE_NAME = 12, 36
_GAP = "  "
_NOTHING = "-"
#: Before a value that is not measured.
ESTIMATED = "~"
#: From here on a bar is yellow, and red.
_WARM, _HOT = 0.8, 0.95


def picture(seen: Seen, columns: int, *, processes: bool = True, whole: bool = False, keys: bool = False) -> list[Text]:
    """Lines for a window of so many columns.

    whole: names of containers are not shortened. keys: say which there are.
    """
    lines = [*heading(seen, columns, keys=keys)]
    cells = {gpu.uuid: [_cells(share, whole=whole) for share in gpu.shares] for gpu in seen.gpus}
    rows = [row for found in cells.values() for row in found]
    shown = fitting([dict.fromkeys(COLUMNS, Text()), *rows], columns)
    if rows:
        lines.append(Text(_line({name: Text(name) for name in COLUMNS}, shown).plain.rstrip(), "bold"))
    for gpu in seen.gpus:
        lines.append(_gpu_line(gpu, columns))
        if gpu.unaccounted:
            by = f", by {gpu.by if whole else gpu.by[:_NAME]}" if gpu.by else ""
            lines.append(Text(f"    {size(gpu.unaccounted)} in use are not accounted for{by}", "red"))
        lines += [Text(f"    {note}", "yellow") for note in gpu.notes]
        for share, row in zip(gpu.shares, cells[gpu.uuid], strict=True):
            lines.append(_line(row, shown))
            lines += [Text(f"    {note}", "yellow") for note in notes(share)]
            if processes:
                lines += _processes(share)
    if not rows:
        lines.append(Text("no container here has a share of a GPU; one asks with -e NVC_SHARE=mem=10Gi", "dim"))
    return lines


def heading(seen: Seen, columns: int, *, keys: bool) -> list[Text]:
    """Which source this is, when, and what is wrong."""
    guarded = any(share.enforcer == GUARD for gpu in seen.gpus for share in gpu.shares)
    without = "no agent: guards go on without it" if guarded else "no agent: shares enforced by the preloaded library"
    if seen.silent:
        without = f"agent {seen.silent}: guards go on without it"
    source = f"agent {seen.agent}" if seen.agent else without
    now = time.strftime("%H:%M:%S", time.localtime(seen.when))
    parts = ["nvc-py top", now, source, *(["q ends, h help"] if keys else [])]
    while len(parts) > 3 and len("   ".join(parts)) > columns:
        parts.pop()
    return [Text("   ".join(parts), "bold"), *(Text(problem, "red") for problem in seen.problems), Text()]


def fitting(rows: Sequence[dict[str, Text]], columns: int) -> dict[str, int]:
    """Which columns there is room for, with their widths."""
    widths = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in COLUMNS}
    for name in ("NAME", "WAIT"):
        if not any(row[name].cell_len for row in rows):
            del widths[name]
    for name in sorted(widths, key=lambda name: -COLUMNS[name]):
        if not COLUMNS[name] or _width(widths) <= columns:
            break
        del widths[name]
    over = _width(widths) - columns
    if over > 0:
        widths["CONTAINER"] = max(4, widths["CONTAINER"] - over)
    return widths


def bar(part: float, width: int = _BAR) -> Text:
    """How much of something is used."""
    full = min(width, round(max(0.0, part) * width))
    style = "red" if part >= _HOT else "yellow" if part >= _WARM else "green"
    return Text("█" * full, style).append("·" * (width - full), "dim")


def notes(share: SeenShare) -> list[str]:
    """What deserves a line of its own: reasons of denials, managed memory, what the driver says otherwise."""
    found = (
        [f"denied: {', '.join(f'{word} {count}' for word, count in denied(share).items())}"] if share.denials else []
    )
    if share.managed:
        found.append(f"managed memory: {size(share.managed)}")
    if share.driver_usage > share.memory:
        found.append(f"the driver says {size(share.driver_usage)}")
    return [*found, *share.notes]


def denied(share: SeenShare) -> dict[str, int]:
    """Reasons that were counted, the most frequent one first."""
    return {word: count for word, count in sorted(share.denials.items(), key=lambda item: -item[1]) if count}


def percent(part: float | None) -> str:
    """A part for people: one decimal below ten."""
    if part is None:
        return _NOTHING
    return f"{part * 100:.0f}%" if part >= 0.0995 or part == 0 else f"{part * 100:.1f}%"


def _width(widths: dict[str, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _cells(share: SeenShare, *, whole: bool) -> dict[str, Text]:
    limit = size(share.limit) if share.limit else _NOTHING
    texts = {
        "CONTAINER": share.container if whole else share.container[:_NAME],
        "NAME": share.name if whole else share.name[-_ENGINE_NAME:],
        "USED/LIMIT": f"{size(share.memory)}/{limit}",
        "TARGET": percent(share.target),
        "ACHIEVED": ("" if share.is_measured or share.achieved is None else ESTIMATED) + percent(share.achieved),
        "CAP": percent(share.cap) if share.cap < 1 else _NOTHING,
        "WEIGHT": str(share.weight),
        "PRIORITY": share.priority,
        "WAIT": wait(share.bound_us, share.latency_us) if share.latency_us else "",
        "GROUPS": str(share.groups),
        "SLICE": f"{share.slice_us / 1000:.1f}ms" if share.slice_us else _NOTHING,
        "FROZEN": _frozen(share),
        "DENIED": str(sum(share.denials.values())) if share.enforcer == GUARD else _NOTHING,
        "ENFORCER": share.enforcer,
    }
    cells = {name: Text(texts.get(name, "")) for name in COLUMNS}
    cells["MEMORY"] = bar(share.memory / share.limit) if share.limit else Text(" " * _BAR)
    if share.paused:
        cells["FROZEN"].stylize("red")
    if share.denials:
        cells["DENIED"].stylize("red")
    return cells


def _frozen(share: SeenShare) -> str:
    if share.paused:
        return "suspended" if share.suspended else "paused"
    if share.frozen_part is not None:
        return percent(share.frozen_part)
    return f"{share.frozen_ns / 1e9:.1f}s" if share.frozen_ns else _NOTHING


def _line(cells: dict[str, Text], widths: dict[str, int]) -> Text:
    line = Text()
    for number, (name, width) in enumerate(widths.items()):
        cell = cells[name]
        length = cell.cell_len
        if length > width:
            cell = cell.copy()
            cell.truncate(width, overflow="ellipsis")
            length = cell.cell_len
        gap, space = _GAP if number else "", " " * (width - length)
        if name in _RIGHT:
            line.append(gap + space).append_text(cell)
        else:
            line.append(gap).append_text(cell).append(space)
    line.rstrip()
    return line


def _gpu_line(gpu: SeenGpu, columns: int) -> Text:
    name = f"GPU {gpu.minor}" if gpu.minor >= 0 else "GPU"
    uuid = gpu.uuid if columns >= 100 else gpu.uuid[:12]
    line = Text(f"{name}  {uuid}  ", "bold cyan")
    if gpu.memory:
        line.append_text(bar(gpu.used / gpu.memory)).append(f"  {size(gpu.used)}/{size(gpu.memory)}")
    else:
        line.append(size(gpu.used))
    given = sum(share.limit for share in gpu.shares) / gpu.memory if gpu.memory else 0
    more = [Text(f"  util {percent(gpu.utilization):>4}"), Text(f"  power {power(gpu):>8}")]
    if given:
        more.append(Text(f"  limits {given:.0%}", "red" if given > 1 else "dim"))
    if gpu.policy:
        more.append(Text(f"  policy {gpu.policy}", "dim"))
    for part in more:  # what there is room for
        if line.cell_len + part.cell_len > columns:
            break
        line.append_text(part)
    return line


def power(gpu: SeenGpu) -> str:
    """What a GPU draws, and may."""
    if gpu.power is None:
        return _NOTHING
    return f"{gpu.power:.0f}W" if gpu.power_limit is None else f"{gpu.power:.0f}/{gpu.power_limit:.0f}W"


def _processes(share: SeenShare) -> list[Text]:
    lines = []
    for process in share.processes:
        inner = f" ({process.inner_pid} in it)" if process.inner_pid else ""
        pid = str(process.pid) if process.pid else "?"
        lines.append(Text(f"    {pid}{inner} {process.name} {size(process.memory)}", "dim"))
    return lines
