"""Hangs where no SIGALRM or SIGTERM ends it, under the watchdog of tests/support."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.support.watchdog import Watchdog

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])
watchdog = Watchdog()
watchdog.begin("one that is done", 1.0)
watchdog.end()
time.sleep(1.5)
print("went on", flush=True)
watchdog.begin("one that hangs", 0.2)
time.sleep(60)
