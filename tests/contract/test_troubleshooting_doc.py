"""docs/user/troubleshooting.md shows messages as they are written: ours are in the source, others' are named here."""

from __future__ import annotations

import re
from pathlib import Path

from nvc.bindings.reasons import REASONS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/user/troubleshooting.md").read_text()
#: What engines, runtimes, Kubernetes and NVIDIA's driver say.
THEIRS = {
    "Driver/library version mismatch",
    "Failed to initialize NVML: Unknown Error",
    "Failed to run: ... forkstart",
    "Insufficient Permissions",
    "Insufficient nvidia.com/gpu",
    "cannot allocate all claims",
    'could not select device driver "" with capabilities: [[gpu]]',
    "error executing hook",
    "failed to fulfil mount request",
    "hook ran past specified timeout",
    "no such file or directory",
    "timeout expired for",
    "unknown or invalid runtime name",
    "unresolvable CDI devices nvc.dev/claim=...",
    "unresolvable CDI devices nvidia.com/gpu=...",
}


def symptoms() -> list[str]:
    """The code in the first column of every table."""
    cells = [line.split(" | ")[0] for line in TEXT.splitlines() if line.startswith("| ")]
    return [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]


def test_messages_are_those_of_the_programs() -> None:
    source = "\n".join(
        file.read_text() for directory in ("nvc", "hook") for file in sorted((ROOT / directory).rglob("*.py"))
    )
    messages = [span for span in symptoms() if " " in span and "=" not in span.split()[0]]
    ours = [span for span in messages if span not in THEIRS]

    assert set(messages) >= THEIRS
    assert len(ours) >= 12
    missing = [part for span in ours for part in re.split(r"\.\.\.|\bN\b", span) if part.strip(" .") not in source]
    assert missing == []


def test_reasons_are_those_of_the_guard() -> None:
    named = {span for span in symptoms() if re.fullmatch(r"[a-z]+(-[a-z]+)+", span)} - {"nvidia-smi"}

    assert len(named) >= 4
    assert named <= set(REASONS)
