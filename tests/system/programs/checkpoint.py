"""Makes CUDA's checkpoint calls, as a program in a container may: VERB PID a line, the CUresult as the answer."""

from __future__ import annotations

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
if cuda.cuInit(0):
    sys.exit("no CUDA")
print("ready", flush=True)
for line in sys.stdin:
    verb, pid = line.split()
    print(getattr(cuda, f"cuCheckpointProcess{verb}")(int(pid), None), flush=True)
