"""What ends a test that signals do not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

#: No SIGALRM or SIGTERM ends it.
DEAF = Path(__file__).parent / "programs/deaf.py"


def test_a_process_that_hangs_is_killed_and_named_and_no_other() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, DEAF], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout) == (-9, "went on\n")
    assert done.stderr == "watchdog: one that hangs hangs beyond the reach of signals: its pytest process is killed\n"
    assert time.monotonic() - began < 50
