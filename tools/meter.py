"""``meter.py PROGRAM ...``: prints the largest resident set, in KiB, of a program or of one it waited for.

A process of its own, because the kernel counts what the parent had at the time of exec to the child's peak
(fs/exec.c, exec_mmap: setmax_mm_hiwater_rss), and a bare interpreter is smaller than anything measured here.
"""

import os
import sys

actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
_, status, usage = os.wait4(pid, 0)
os.write(1, str(usage.ru_maxrss).encode())
os._exit(status != 0)
