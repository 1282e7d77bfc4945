"""A low-level runtime that writes how it was started to ``record`` beside its directory."""

import _signal
import os
import sys

ignored = [n for n in (_signal.SIGPIPE, _signal.SIGXFSZ) if _signal.getsignal(n) == _signal.SIG_IGN]
with open("/proc/self/status") as status, open(f"{os.path.dirname(sys.argv[0])}/../record", "w") as record:
    record.write(repr((sys.argv[1:], sorted(os.environ), status.read())))
