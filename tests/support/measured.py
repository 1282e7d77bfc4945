"""The page docs/measured/engines.md: what the tests of engines ran, and what came out, written by the run itself."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
from pathlib import Path

import pytest

PROGRAMS = {
    "Docker Engine": ("dockerd", "--version"),
    "containerd": ("containerd", "--version"),
    "Podman": ("podman", "--version"),
    "runc": ("runc", "--version"),
    "crun": ("crun", "--version"),
    "LXC": ("lxc-execute", "--version"),
    "Slurm": ("slurmd", "-V"),
}
LINES = 12
WIDTH = 300


class Record:
    """A pytest plugin that gathers the reports of a run."""

    def __init__(self, target: str) -> None:
        self.target = Path(target)
        self.reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.setdefault(report.nodeid, []).append(report)

    def pytest_sessionfinish(self) -> None:
        if self.reports:
            self.target.write_text(page(self.reports))


def page(reports: dict[str, list[pytest.TestReport]]) -> str:
    """The whole page."""
    lines = [
        "# Engines on the simulated machine",
        "",
        f"Written by `make test-engines` on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}; not edited by hand.",
        "No GPU is involved: the driver is [simulated](../user/simulated-machine.md). "
        "What a GPU must show is in tests/gpu.",
        "A record of one run: a row for each test, then what containers printed; for looking up, not for reading.",
        "",
        f"Kernel {os.uname().release}, {os.cpu_count()} CPUs. " + ", ".join(_versions()) + ".",
        "",
        "| file | test | result | seconds |",
        "|---|---|---|---|",
    ]
    shown: list[str] = []
    for nodeid in sorted(reports):
        file, _, name = nodeid.partition("::")
        lines.append(
            f"| {Path(file).name} | {_cell(name)} | {_outcome(reports[nodeid])} | {_seconds(reports[nodeid])} |"
        )
        shown += _shown(f"{Path(file).stem.removeprefix('test_')}: {name}", reports[nodeid])
    return "\n".join([*lines, "", "## What was run", "", *shown]).rstrip() + "\n"


def _shown(name: str, reports: list[pytest.TestReport]) -> list[str]:
    pairs = [value for report in reports if report.when == "teardown" for key, value in report.user_properties]
    if not pairs:
        return []
    text = [f"### {name}", "", "```"]
    for pair in pairs:
        command, output = pair if isinstance(pair, list | tuple) else ("", "")
        kept = [plain(line) for line in str(output).strip().splitlines()]
        more = [f"... ({len(kept) - LINES} lines more)"] if len(kept) > LINES else []
        text += [f"# {plain(str(command))}", *(short(line) for line in kept[:LINES]), *more]
    return [*text, "```", ""]


def short(line: str) -> str:
    """A line that a page can show: its beginning and its end, where an engine quotes us."""
    return line if len(line) <= WIDTH else f"{line[: WIDTH // 3]} ... {line[-WIDTH * 2 // 3 :]}"


def plain(text: str) -> str:
    """A line without what differs from run to run: the test's token and directory, container ids."""
    text = re.sub(r"/tmp/[A-Za-z0-9_.]+/product/bin/|/tmp/nvc-engines\.\w+/bin/", "", text)
    text = re.sub(r"nvct[0-9a-f]{8}", "TEST", text)
    return re.sub(r"\b[0-9a-f]{64}\b", "ID", text)


def _outcome(reports: list[pytest.TestReport]) -> str:
    bad = [report for report in reports if report.failed]
    if bad:
        return "FAILED"
    skipped = [report for report in reports if report.skipped]
    if skipped:
        reason = skipped[0].longrepr
        why = reason[2] if isinstance(reason, tuple) else str(reason)
        return _cell(why.removeprefix("Skipped: "))
    return "passed"


def _seconds(reports: list[pytest.TestReport]) -> str:
    return f"{sum(report.duration for report in reports):.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _versions() -> list[str]:
    found = []
    for name, command in PROGRAMS.items():
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
        except OSError:
            continue
        version = re.search(r"\d+\.\d+[\w.~+]*", said)
        found.append(f"{name} {version.group() if version else '?'}")
    return found
