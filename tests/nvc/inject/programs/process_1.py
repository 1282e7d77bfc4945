"""Process 1 of a pid namespace: ``process_1.py SIGCHLD WORD...`` runs a command, and prints states of what it left.

SIGCHLD: what is done about the signal: default, caught, blocked, ignored.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

if sys.argv[1] == "blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
elif sys.argv[1] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
elif sys.argv[1] == "caught":
    signal.signal(signal.SIGCHLD, lambda *_: None)
command = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, setsigdef=[signal.SIGCHLD], setsigmask=[])
with contextlib.suppress(ChildProcessError):  # the kernel has reaped it
    os.waitpid(command, 0)
states = ["?"]
while not set(states) <= {"Z"}:
    time.sleep(0.01)
    states = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            states += Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:1] if name != "1" else []
print("left", states, file=sys.stderr)
