"""``without_perf_events.py PROGRAM ...``: starts it where the kernel has no perf events."""

import errno
import os
import sys

import pyseccomp

absent = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
absent.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "perf_event_open")
absent.load()
os.execv(sys.argv[1], sys.argv[1:])
