"""What ends a test that signals do not."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.support.native import CHECKOUT

#: Python code that no SIGALRM or SIGTERM ends.
_DEAF = """
import signal, time
from tests.support.watchdog import Watchdog
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])
watchdog = Watchdog()
watchdog.begin("one that is done", 1.0)
watchdog.end()
time.sleep(1.5)
print("went on", flush=True)
watchdog.begin("one that hangs", 0.2)
time.sleep(60)
"""


def test_whoever_hangs_is_killed_and_named_and_nobody_else() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", _DEAF], cwd=CHECKOUT, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout) == (-9, "went on\n")
    assert done.stderr == "watchdog: one that hangs hangs beyond the reach of signals: its pytest process is killed\n"
    assert time.monotonic() - began < 50
