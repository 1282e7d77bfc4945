"""Metrics as text: Prometheus's own format, and OpenMetrics 1.0.

Both by prometheus.io/docs/instrumenting/exposition_formats; written here because a page of 2,000 tenants has 76,000
samples, which a general library takes seconds for. Tests read it with Prometheus's own parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.agent.metrics.hami import HAMI
from nvc.agent.metrics.rows import NODE, TENANT
from nvc.agent.metrics.samples import labelled

if TYPE_CHECKING:
    from nvc.agent.metrics.samples import Row
    from nvc.agent.status import AgentStatus

#: Content types. A reader that names the second one gets it.
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_OPEN = "application/openmetrics-text"
OPEN = f"{_OPEN}; version=1.0.0; charset=utf-8"


def text(status: AgentStatus, *, hami: bool = False, accept: str = "") -> tuple[bytes, str]:
    """(page, its content type): every metric; those that have no sample are named too.

    hami: HAMi's names as well. accept: the reader's header.
    """
    is_open = _OPEN in accept
    few = labelled(status)
    page = [
        _family(row, of, is_open=is_open)
        for rows, of in ((NODE, status), (TENANT, few), (HAMI if hami else (), few))
        for row in rows
    ]
    if is_open:
        page.append("# EOF\n")
    # A name that is not UTF-8 must not keep the others from being seen.
    return "".join(page).encode("utf-8", "replace"), OPEN if is_open else PLAIN


def _family(row: Row, status: AgentStatus, *, is_open: bool) -> str:
    """OpenMetrics names a counter without what its samples end with."""
    name = row.name.removesuffix("_total") if is_open else row.name
    lines = [f"# HELP {name} {_escaped(row.help)}\n# TYPE {name} {row.kind}\n"]
    if is_open and row.unit:
        lines.append(f"# UNIT {name} {row.unit}\n")
    if not row.labels:
        lines += [f"{row.name} {value!r}\n" for _, value in row.samples(status)]
        return "".join(lines)
    names = ",".join(f'{label}="%s"' for label in row.labels)
    line = f"{row.name}{{{names}}} %r\n"
    known: dict[str, str] = {}
    for labels, value in row.samples(status):
        try:
            lines.append(line % (*[known[label] for label in labels], value))
        except KeyError:
            known.update((label, _escaped(label)) for label in labels)
            lines.append(line % (*[known[label] for label in labels], value))
    return "".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
