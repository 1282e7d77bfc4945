"""until_it_prints.py BLOCK SHOWN: run a block of a page again until it prints what the page shows, for 30 s at most.

What differs between runs may: ids and the order of lines by them, percentages, times, rates, power, pids, versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

_ANY = re.compile(
    r"[0-9a-f]{12,64}|~?[0-9.]+ ?%|[0-9.]+/[0-9.]+(?:ms|W)|[0-9.]+ ?m?s\b|[0-9:]{8}|[0-9]+\.[0-9]+\.[0-9]+"
    r"|(?<=agent: )[^)]+|[0-9]+(?= kernels a second| python3| requests)"
)


def shape(text: str) -> list[str]:
    lines = [line for line in text.strip().splitlines() if "SIMULATED" not in line]
    return sorted(" ".join(_ANY.sub("*", line).split()) for line in lines)


block, shown = sys.argv[1], Path(sys.argv[2]).read_text()
deadline = time.monotonic() + 30
while True:
    found = subprocess.run(
        ["sh", "-e", block], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if shape(found.stdout) == shape(shown) or time.monotonic() > deadline:
        break
    time.sleep(0.5)
print(found.stdout, end="", flush=True)
if shape(found.stdout) != shape(shown):
    sys.exit(f"the page shows:\n{shown}\nas {shape(shown)}\nand not {shape(found.stdout)}")
