"""``sanitise_process.py ROOT TRUSTED REPORT DESCRIPTOR...``: hook.process in a process of its own.

REPORT gets, as JSON, what the process has then, and which of the descriptors are closed. TRUSTED: 0 or 1.
"""

import json
import os
import sys

sys.path.insert(0, sys.argv[1])
from hook.process import sanitise

inherited = [int(word) for word in sys.argv[4:]]
directory = sanitise(trusted=sys.argv[2] == "1")
report = {
    "env": dict(os.environ),
    "cwd": os.getcwd(),
    "umask": os.umask(0),
    "directory": directory,
    "closed": [number for number in inherited if not os.path.exists(f"/proc/self/fd/{number}")],
    "fds": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)],
}
with open(sys.argv[3], "w") as file:
    json.dump(report, file)
