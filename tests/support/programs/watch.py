"""``watch.py PIPE PID``: kills the process when a limit passes that it wrote to the pipe (``Watchdog``)."""

import os
import select
import signal
import sys
import time

pipe, pid = int(sys.argv[1]), int(sys.argv[2])
process = os.pidfd_open(pid)
end, what = None, b""
while True:
    left = None if end is None else max(0, end - time.monotonic())
    ready, _, _ = select.select([pipe, process], [], [], left)
    if process in ready:
        break
    if pipe in ready:
        lines = os.read(pipe, 65536).splitlines()
        if not lines:
            break
        seconds, _, what = lines[-1].partition(b" ")
        end = time.monotonic() + float(seconds) if float(seconds) else None
    elif end is not None:
        os.write(2, b"watchdog: " + what + b" hangs beyond the reach of signals: its pytest process is killed\n")
        signal.pidfd_send_signal(process, signal.SIGKILL)
        break
