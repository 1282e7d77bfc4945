"""Run a command, then reap what it left: ``subreaper.py WORD...`` prints its exit code and how each process ended."""

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36

ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
command = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
ended = {}
while True:
    try:
        pid, status = os.waitpid(-1, 0)
    except ChildProcessError:
        break
    ended[pid] = os.waitstatus_to_exitcode(status)
print("command", ended.pop(command), "left", sorted(ended.values()), file=sys.stderr)
