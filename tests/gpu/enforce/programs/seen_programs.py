"""What other programs ask of the driver, a word each: torch, ipc, nvml, checkpoint, opencl, vulkan, egl, nvdec.

Exits with 77 where the library for it is not there. Its calls of the driver matter: every step that fails is said on
standard error, and the next one is tried.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer

MISSING = 77


def library(*names: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    sys.exit(MISSING)


def tried(what: str, status: int) -> bool:
    if status:
        print(f"{what}: {status}", file=sys.stderr)
    return status == 0


def context(cuda: ctypes.CDLL) -> c_void_p:
    device, made = c_int(), c_void_p()
    tried("cuInit", cuda.cuInit(0))
    tried("cuDeviceGet", cuda.cuDeviceGet(byref(device), 0))
    tried("cuCtxCreate", cuda.cuCtxCreate_v2(byref(made), 0, device))
    return made


def torch() -> None:
    """A training step with pinned memory, AMP, a graph, streams, events, and what the caches and pools give back."""
    try:
        import torch as t
    except ImportError:
        sys.exit(MISSING)
    model = t.nn.Sequential(t.nn.Conv2d(3, 32, 3), t.nn.ReLU(), t.nn.Flatten(), t.nn.LazyLinear(10)).cuda()
    host = t.randn(32, 3, 64, 64).pin_memory()
    optimizer = None
    for _ in range(5):
        batch = host.to("cuda", non_blocking=True)
        with t.autocast("cuda"):
            loss = model(batch).float().square().mean()
        optimizer = optimizer or t.optim.Adam(model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    static, graph = t.zeros(1 << 20, device="cuda"), t.cuda.CUDAGraph()
    with t.cuda.graph(graph):
        static.add_(1)
    graph.replay()
    t.cuda.synchronize()
    t.linalg.inv(t.randn(256, 256, device="cuda"))
    t.fft.fft(t.randn(1 << 16, device="cuda"))
    t.cuda.memory_stats()
    t.cuda.mem_get_info()
    t.cuda.empty_cache()


def ipc() -> None:
    """A tensor in another process, by CUDA's handles."""
    try:
        import torch as t
        import torch.multiprocessing as processes
    except ImportError:
        sys.exit(MISSING)
    spawning = processes.get_context("spawn")
    queue, back = spawning.Queue(), spawning.Queue()
    child = spawning.Process(target=_double, args=(queue, back))
    child.start()
    tensor = t.ones(1 << 20, device="cuda")
    queue.put(tensor)
    back.get(timeout=30)
    child.join(10)


def _double(queue: object, back: object) -> None:
    tensor = queue.get(timeout=30)  # type: ignore[attr-defined]
    tensor.mul_(2)
    del tensor
    back.put(1)  # type: ignore[attr-defined]


#: nvmlDeviceGet... that take a device and one place for the answer.
_SIMPLE = """
Name Serial UUID MinorNumber BoardPartNumber InforomImageVersion InforomConfigurationChecksum DisplayMode
DisplayActive PersistenceMode PciInfo_v3 MaxPcieLinkGeneration MaxPcieLinkWidth CurrPcieLinkGeneration
CurrPcieLinkWidth PcieReplayCounter FanSpeed PerformanceState CurrentClocksThrottleReasons
SupportedClocksThrottleReasons PowerState PowerManagementMode PowerManagementLimit PowerManagementDefaultLimit
PowerUsage TotalEnergyConsumption EnforcedPowerLimit MemoryInfo ComputeMode CudaComputeCapability BoardId
MultiGpuBoard UtilizationRates VbiosVersion BridgeChipInfo AccountingMode AccountingBufferSize MaxMigDeviceCount
VirtualizationMode Architecture NumGpuCores PowerSource MemoryBusWidth PcieLinkMaxSpeed PcieSpeed
AdaptiveClockInfoStatus BusType GpuMaxPcieLinkGeneration IrqNum Brand Index GspFirmwareVersion DynamicPstatesInfo
RemappedRowsHistogram Bar1MemoryInfo
"""
#: ... a device, one number, and a place.
INDEXED = (
    ("ClockInfo", 4), ("MaxClockInfo", 4), ("ApplicationsClock", 3), ("DefaultApplicationsClock", 3),
    ("Temperature", 1), ("TemperatureThreshold", 8), ("PcieThroughput", 2), ("NvLinkState", 2), ("NvLinkVersion", 2),
    ("InforomVersion", 3), ("ViolationStatus", 6), ("APIRestriction", 2), ("FanSpeed_v2", 2),
    ("NvLinkRemoteDeviceType", 2),
)  # fmt: skip
#: ... a device and two or more places.
_PAIRS = """
EccMode EncoderUtilization DecoderUtilization JpgUtilization OfaUtilization MigMode GpuOperationMode DriverModel
PowerManagementLimitConstraints AutoBoostedClocksEnabled RetiredPagesPendingStatus
"""
#: Those whose place has a length.
_TEXTS = ("Name", "Serial", "UUID", "BoardPartNumber", "InforomImageVersion", "VbiosVersion")


def nvml() -> None:
    """NVML's questions, by their plainest forms. Nothing that sets or resets."""
    lib = library("libnvidia-ml.so.1")
    device, room, more, third = c_void_p(), *(create_string_buffer(1 << 18) for _ in range(3))
    if not tried("nvmlInit", lib.nvmlInit_v2()):
        return
    tried("handle", lib.nvmlDeviceGetHandleByIndex_v2(0, byref(device)))
    for name in _SIMPLE.split():
        function = getattr(lib, f"nvmlDeviceGet{name}", None)
        if function is not None and name in _TEXTS:
            tried(name, function(device, room, 96))
        elif function is not None:
            tried(name, function(device, room))
    for name, count in INDEXED:
        function = getattr(lib, f"nvmlDeviceGet{name}", None)
        for number in range(count if function is not None else 0):
            if name == "InforomVersion":
                tried(name, function(device, number, room, 96))
            else:
                tried(name, function(device, number, room))
    for name in _PAIRS.split():
        function = getattr(lib, f"nvmlDeviceGet{name}", None)
        if function is not None:
            tried(name, function(device, room, more))
    for counter, kind in ((0, 0), (1, 0), (0, 1), (1, 1)):
        tried("TotalEccErrors", lib.nvmlDeviceGetTotalEccErrors(device, counter, kind, room))
    tried("RemappedRows", lib.nvmlDeviceGetRemappedRows(device, room, more, third, byref(c_uint())))
    for name in ("ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3", "MPSComputeRunningProcesses_v3"):
        count = c_uint(100)
        tried(name, getattr(lib, f"nvmlDeviceGet{name}")(device, byref(count), room))
    count = c_uint(100)
    tried("ProcessUtilization", lib.nvmlDeviceGetProcessUtilization(device, room, byref(count), c_uint64(0)))
    for kind in range(7):
        kinds, count = c_uint(), c_uint(100)
        tried("Samples", lib.nvmlDeviceGetSamples(device, kind, c_uint64(0), byref(kinds), byref(count), room))
    # Field values: nvmlFieldValue_t is 40 bytes and begins with the number.
    for first in range(1, 240, 20):
        for place in range(20):
            ctypes.memmove(ctypes.addressof(room) + 40 * place, byref(c_uint(first + place)), 4)
        tried("FieldValues", lib.nvmlDeviceGetFieldValues(device, 20, room))
    tried("TopologyCommonAncestor", lib.nvmlDeviceGetTopologyCommonAncestor(device, device, room))
    lib.nvmlShutdown()


def checkpoint() -> None:
    """CUDA's checkpoint and restore of a child with memory, from outside."""
    if len(sys.argv) > 2:
        cuda = library("libcuda.so.1")
        context(cuda)
        place = c_uint64()
        tried("cuMemAlloc", cuda.cuMemAlloc_v2(byref(place), c_size_t(64 << 20)))
        print("ready", flush=True)
        time.sleep(30)
        return
    cuda = library("libcuda.so.1")
    if not hasattr(cuda, "cuCheckpointProcessLock"):
        sys.exit(MISSING)
    with subprocess.Popen([sys.executable, __file__, "checkpoint", "child"], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        tried("cuInit", cuda.cuInit(0))
        for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
            tried(step, getattr(cuda, f"cuCheckpointProcess{step}")(child.pid, create_string_buffer(256)))
        child.kill()


def opencl() -> None:
    lib = library("libOpenCL.so.1", "libnvidia-opencl.so.1")
    lib.clCreateContext.restype = lib.clCreateBuffer.restype = lib.clCreateCommandQueue.restype = c_void_p
    platform, device, error = c_void_p(), c_void_p(), c_int()
    if not tried("clGetPlatformIDs", lib.clGetPlatformIDs(1, byref(platform), None)):
        return
    tried("clGetDeviceIDs", lib.clGetDeviceIDs(platform, c_uint64(4), 1, byref(device), None))
    made = c_void_p(lib.clCreateContext(None, 1, byref(device), None, None, byref(error)))
    queue = c_void_p(lib.clCreateCommandQueue(made, device, c_uint64(0), byref(error)))
    memory = c_void_p(lib.clCreateBuffer(made, c_uint64(1), c_size_t(32 << 20), None, byref(error)))
    room = create_string_buffer(1 << 20)
    tried("clWrite", lib.clEnqueueWriteBuffer(queue, memory, 1, c_size_t(0), c_size_t(1 << 20), room, 0, None, None))
    tried("clFinish", lib.clFinish(queue))


def vulkan() -> None:
    """An instance, the devices, and a logical device with its first queue family."""
    lib = library("libvulkan.so.1")

    class InstanceInfo(ctypes.Structure):
        _fields_ = [("type", c_int), ("next", c_void_p), ("flags", c_uint), ("app", c_void_p), ("layers", c_uint),
                    ("layer_names", c_void_p), ("extensions", c_uint), ("extension_names", c_void_p)]  # fmt: skip

    class QueueInfo(ctypes.Structure):
        _fields_ = [("type", c_int), ("next", c_void_p), ("flags", c_uint), ("family", c_uint), ("count", c_uint),
                    ("priorities", POINTER(ctypes.c_float))]  # fmt: skip

    class DeviceInfo(ctypes.Structure):
        _fields_ = [("type", c_int), ("next", c_void_p), ("flags", c_uint), ("queues", c_uint),
                    ("queue", POINTER(QueueInfo)),
                    ("layers", c_uint), ("layer_names", c_void_p), ("extensions", c_uint),
                    ("extension_names", c_void_p), ("features", c_void_p)]  # fmt: skip

    instance, devices, count = c_void_p(), (c_void_p * 16)(), c_uint(16)
    if not tried("vkCreateInstance", lib.vkCreateInstance(byref(InstanceInfo(type=1)), None, byref(instance))):
        return
    tried("vkEnumeratePhysicalDevices", lib.vkEnumeratePhysicalDevices(instance, byref(count), devices))
    if count.value:
        one, made = ctypes.c_float(1), c_void_p()
        queue = QueueInfo(type=2, family=0, count=1, priorities=ctypes.pointer(one))
        info = DeviceInfo(type=3, queues=1, queue=ctypes.pointer(queue))
        if tried("vkCreateDevice", lib.vkCreateDevice(c_void_p(devices[0]), byref(info), None, byref(made))):
            lib.vkDeviceWaitIdle(made)
            lib.vkDestroyDevice(made, None)
    lib.vkDestroyInstance(instance, None)


def egl() -> None:
    """A display of the first device without a screen, and a context."""
    lib = library("libEGL.so.1")
    lib.eglGetProcAddress.restype = lib.eglCreateContext.restype = c_void_p
    query = lib.eglGetProcAddress(c_char_p(b"eglQueryDevicesEXT"))
    display_of = lib.eglGetProcAddress(c_char_p(b"eglGetPlatformDisplayEXT"))
    if not query or not display_of:
        sys.exit(MISSING)
    devices, count = (c_void_p * 8)(), c_int()
    ctypes.CFUNCTYPE(c_uint, c_int, c_void_p, c_void_p)(query)(8, ctypes.addressof(devices), ctypes.addressof(count))
    make = ctypes.CFUNCTYPE(c_void_p, c_uint, c_void_p, c_void_p)(display_of)
    for index in range(count.value):
        display = c_void_p(make(0x313F, devices[index], None))
        if not lib.eglInitialize(display, None, None):
            continue
        config, found = c_void_p(), c_int()
        lib.eglBindAPI(0x30A2)
        lib.eglChooseConfig(display, (c_int * 1)(0x3038), byref(config), 1, byref(found))
        made = c_void_p(lib.eglCreateContext(display, config, None, None))
        lib.eglMakeCurrent(display, None, None, made)
        lib.eglTerminate(display)


def nvdec() -> None:
    """What the decoder can do, and a decoder for H.264 (cuviddec.h: CUVIDDECODECAPS, CUVIDDECODECREATEINFO)."""
    cuda, video = library("libcuda.so.1"), library("libnvcuvid.so.1")
    context(cuda)
    for codec in (0, 1, 4, 8, 11):
        caps = create_string_buffer(256)
        ctypes.memmove(caps, (c_int * 3)(codec, 1, 0), 12)
        tried("cuvidGetDecoderCaps", video.cuvidGetDecoderCaps(caps))
    info = create_string_buffer(512)
    values = (c_uint64 * 3)(1920, 1088, 8)
    ctypes.memmove(info, values, 24)
    for at, numbers in ((24, (c_int * 2)(4, 1)), (56, (c_uint64 * 2)(1920, 1088)), (96, (c_uint64 * 3)(1920, 1088, 2))):
        ctypes.memmove(ctypes.addressof(info) + at, numbers, ctypes.sizeof(numbers))
    decoder = c_void_p()
    tried("cuvidCreateDecoder", video.cuvidCreateDecoder(byref(decoder), info))


if __name__ == "__main__":
    {one.__name__: one for one in (torch, ipc, nvml, checkpoint, opencl, vulkan, egl, nvdec)}[sys.argv[1]]()
    sys.stderr.flush()
    os._exit(0)  # libraries' own ends may hang without a screen
