"""``report_imports.py LIBRARY REPORT PROGRAM WORD...``: works as a process of the pre-fork server.

Every process that ends appends to REPORT its status and what it imported anew. PROGRAM: nvc-py, nvc-hook, nvc-cdi-hook,
or nvc-runtime, for its parent.
"""

import os
import sys

sys.path.extend([sys.argv[1], f"{sys.argv[1]}/deps"])
from hook.warm import programs
from nvc.linux import process
from nvc.prefork import worker
from nvc.prefork.runtimes import parent_and_start

for name in worker.MODULES:
    __import__(name)
report = sys.argv[2]
before, leave = set(sys.modules), os._exit


def told(status: int) -> None:
    with open(report, "a") as file:
        print(status, *(set(sys.modules) - before), file=file)
    leave(status)


os._exit = told
sys.argv = sys.argv[3:]
made = programs()
if sys.argv[0] == "nvc-runtime":
    process.caller, process.caller_started = os.getppid(), parent_and_start(os.getppid())[1]
run = {"nvc-hook": made.hook, "nvc-cdi-hook": made.cdi, "nvc-runtime": made.runtime}.get(sys.argv[0], made.configure)
os._exit(run())
