"""``ask_libcuda.py ROOT``: asks the libcuda of a simulated h100x8 from within its root."""

import ctypes
import os
import sys

os.chroot(sys.argv[1])
os.chdir("/")
cuda = ctypes.CDLL("libcuda.so.1")
number, name = ctypes.c_int(), ctypes.create_string_buffer(96)
assert cuda.cuDeviceGetCount(ctypes.byref(number)) == 3
assert cuda.cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value == 12040
assert cuda.cuInit(1) == 1 and cuda.cuInit(0) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(number)) == 0 and number.value == 8
assert cuda.cuDeviceGet(ctypes.byref(number), 8) == 101
assert cuda.cuDeviceGetName(name, 96, 7) == 0 and name.value == b"NVIDIA H100 80GB HBM3"
