"""``report_imports.py LIBRARY REPORT PROGRAM WORD...``: works as a process of the pre-fork server.

Every process that ends appends to REPORT its status and what it imported anew. PROGRAM: nvc-py or nvc-hook.
"""

import os
import sys

sys.path.extend([sys.argv[1], f"{sys.argv[1]}/deps"])
from hook.warm import programs
from nvc.prefork import server

for name in server.MODULES:
    __import__(name)
report = sys.argv[2]
before, leave = set(sys.modules), os._exit


def told(status: int) -> None:
    with open(report, "a") as file:
        print(status, *(set(sys.modules) - before), file=file)
    leave(status)


os._exit = told
sys.argv = sys.argv[3:]
os._exit(programs().hook() if sys.argv[0] == "nvc-hook" else programs().configure())
