"""A program for the tutorials: CUDA without a toolkit, on a GPU or on a simulated machine.

gpu.py hold MIB         allocate MIB in pieces of 256 MiB, say how much was given, keep it
gpu.py compute SECONDS  hold 1 GiB and launch kernels for that long, say how many a second
gpu.py serve SECONDS    hold 1 GiB and answer a request of 2 ms about every 20 ms, say how long they took
"""

import ctypes
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

PIECE_MIB, OUT_OF_MEMORY = 256, 2
#: Arithmetic of about half a millisecond on an H200; a simulated GPU takes the other text.
KERNEL = b"""\
.version 6.0
.target sm_50
.address_size 64
.visible .entry burn ()
{
    .reg .u64 %left;
    .reg .f32 %f, %g;
    .reg .pred %more, %never;
    mov.u64 %left, 30000;
    mov.f32 %f, 0f3F800000;
    mov.f32 %g, 0f3F800001;
again:
    fma.rn.f32 %f, %f, %g, %g;
    fma.rn.f32 %f, %f, %g, %g;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra again;
    setp.eq.f32 %never, %f, 0f00000000;
    @%never trap;
    ret;
}
"""
SIMULATED = b"sim kernel burn nanoseconds=500000\n"
cuda = ctypes.CDLL("libcuda.so.1")


def must(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        sys.exit(f"{name}: error {result}")


def begin():
    device, context, free, total = c_int(), c_void_p(), c_size_t(), c_size_t()
    must("cuInit", 0)
    must("cuDeviceGet", byref(device), 0)
    must("cuDevicePrimaryCtxRetain", byref(context), device)
    must("cuCtxSetCurrent", context)
    must("cuMemGetInfo_v2", byref(free), byref(total))
    print(f"the GPU has {total.value >> 20} MiB", flush=True)


def hold(mib):
    got, result = 0, 0
    while got < mib and not result:
        place = c_uint64()
        result = cuda.cuMemAlloc_v2(byref(place), c_size_t(PIECE_MIB << 20))
        got += 0 if result else PIECE_MIB
    why = {0: "all that was asked for", OUT_OF_MEMORY: "then out of memory"}.get(result, f"then error {result}")
    print(f"given {got} of {mib} MiB, {why}", flush=True)


def load():
    module, kernel = c_void_p(), c_void_p()
    if cuda.cuModuleLoadData(byref(module), SIMULATED):
        must("cuModuleLoadData", byref(module), KERNEL)
    must("cuModuleGetFunction", byref(kernel), module, b"burn")
    return kernel


def launch(kernel, count):
    for _ in range(count):
        must("cuLaunchKernel", kernel, 132, 1, 1, 256, 1, 1, 0, None, None, None)
    must("cuCtxSynchronize")


def compute(seconds):
    kernel, done, begun = load(), 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        launch(kernel, 20)
        done += 20
    print(f"{done / (time.monotonic() - begun):.0f} kernels a second", flush=True)


def serve(seconds):
    kernel, took, begun = load(), [], time.monotonic()
    while time.monotonic() - begun < seconds:
        asked = time.monotonic()
        launch(kernel, 4)
        took.append(time.monotonic() - asked)
        time.sleep(0.02)
    took.sort()
    print(f"{len(took)} requests, half of them within {took[len(took) // 2] * 1000:.1f} ms", flush=True)


begin()
if sys.argv[1] == "hold":
    hold(int(sys.argv[2]))
    time.sleep(86400)
hold(1024)
{"compute": compute, "serve": serve}[sys.argv[1]](float(sys.argv[2]))
