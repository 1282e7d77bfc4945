"""Runs checks in a child process: one that crashes or hangs loses only its own findings.

The child sends the findings of each check to the parent as one line of JSON. When a check exceeds its time limit or the
child dies, the next child continues with the check after it.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nvc.base.errors import NvcError, reason
from nvc.base.progress import waiting
from nvc.doctor.finding import OK, SKIPPED, Check, Finding, error, note, skipped, warning
from nvc.doctor.probe import BadFile
from nvc.linux.process import fork

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

#: Findings of one check; a hostile directory with a million files must not flood the screen.
FINDINGS_LIMIT = 50
_KILL = 9
_CHUNK = 1 << 16


def run(checks: Sequence[Check], probe: Probe, seconds: float) -> Iterator[Finding]:
    """The findings of every check, in their order; at least one for each check. Raises nothing.

    seconds: how long one check may take, times its timeout_factor.
    """
    position = 0
    while position < len(checks):
        with _Child(checks[position:], probe) as child:
            for check in checks[position:]:
                position += 1
                limit = seconds * check.timeout_factor
                with waiting(f"check {check.name}"):
                    found = child.findings(limit)
                if isinstance(found, list):
                    yield from found
                    continue
                yield filled(warning(f"the check {found.format(limit=limit)}", "", ""), check)
                break


def examine(check: Check, probe: Probe) -> list[Finding]:
    """What one check finds, in this process. Its exceptions are findings too."""
    found: list[Finding] = []
    try:
        for finding in check.look(probe):
            if len(found) == FINDINGS_LIMIT:
                found.append(note(f"only the first {FINDINGS_LIMIT} findings of this check are shown"))
                break
            found.append(finding)
    except PermissionError as problem:
        place = os.fsdecode(problem.filename) if problem.filename else "a file"
        found.append(note(f"cannot see {place}: permission denied", "sudo nvc-py doctor", "this check is incomplete"))
    except BadFile as problem:
        found.append(
            error(str(problem), "# correct the file, or move it away", "nothing in a file that cannot be read is used")
        )
    except OSError as problem:
        place = f"{os.fsdecode(problem.filename)}: " if problem.filename else ""
        found.append(warning(f"cannot look at {place}{reason(problem)}", ""))
    except NvcError as problem:
        found.append(warning(f"cannot be checked: {problem}", f"# {problem.hint}" if problem.hint else ""))
    except Exception as problem:
        text = f"the check failed: {type(problem).__name__}: {problem}"
        found.append(warning(text, "", "this is a bug in nvc-py, please report it"))
    return [filled(finding, check) for finding in found or [skipped("nothing to check here")]]


def filled(finding: Finding, check: Check) -> Finding:
    why = "" if finding.level in (OK, SKIPPED) else finding.why or check.why
    return finding.replace(check=check.name, area=check.area, why=why)


class _Child:
    """A process that examines ``checks`` in turn."""

    def __init__(self, checks: Sequence[Check], probe: Probe) -> None:
        self._buffer = b""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)

        def work() -> None:
            os.close(self._read)
            for check in checks:
                rows = [finding.as_data() for finding in examine(check, probe)]
                line = memoryview(json.dumps(rows).encode() + b"\n")
                while line:
                    line = line[os.write(write, line) :]

        self._pid = fork(work)
        os.close(write)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        try:
            os.kill(self._pid, _KILL)
            # A process that waits for a dead file server cannot be killed; init reaps it.
            end = time.monotonic() + 1
            while not os.waitpid(self._pid, os.WNOHANG)[0] and time.monotonic() < end:
                time.sleep(0.001)
        except (ProcessLookupError, ChildProcessError):
            pass

    def findings(self, seconds: float) -> list[Finding] | str:
        """Of the next check, or why there are none ({limit}: the seconds it had)."""
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                return "did not end within {limit:g} s and was stopped; the others were run"
            part = os.read(self._read, _CHUNK)
            if not part:
                return "ended its process; the others were run"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return [Finding.from_data(row) for row in json.loads(line)]
