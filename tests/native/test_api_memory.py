"""libnvc-shim-api.so and memory: managed memory where a share oversubscribes, the quota where rm knows no ABI."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvc.share import limits, region
from tests.support.fake_driver import GIB, MIB, UNKNOWN, Container, compile_library, gpu


@pytest.fixture
def generous(tmp_path: Path) -> Container:
    return Container(tmp_path, gpu(0, 64 * GIB, oversubscribe=True), gpu(1, 4 * GIB))


@pytest.fixture
def counted(tmp_path: Path) -> Container:
    return Container(tmp_path, gpu(0, 64 * MIB), gpu(1, 32 * MIB), version=UNKNOWN)


def used(container: Container, index: int = 0) -> int:
    with container.region.open("rb") as file:
        return region.read(file.fileno(), 2).used(index)


def test_converts_allocations_where_the_share_oversubscribes(generous: Container) -> None:
    generous.check("""
assert take(20 * GIB)[0] == 0 and (alloc(), managed()) == (0, 1)   # more than the GPU has
assert cuda.fake_advised() == 0 and cuda.fake_used(0) == 0
for row in ("cuMemAllocAsync", "cuMemAllocAsync_ptsz"):
    assert take(GIB, row, c_void_p(1000))[0] == 0
assert (alloc_async(), managed()) == (0, 3)
cuda.fake_current(1)
assert take(GIB)[0] == 0 and (alloc(), managed()) == (1, 3)        # this GPU's share does not
assert take(GIB, "cuMemAllocAsync", c_void_p(1000))[0] == 0        # a stream's device counts, not the current one
assert (alloc_async(), managed(), cuda.fake_advised()) == (0, 4, 0)
""")


def test_leaves_what_cannot_be_managed_memory(generous: Container) -> None:
    generous.check("""
assert cuda.cuMemAlloc_v2(None, c_size_t(1)) == 1 and take(0)[0] == 1 and managed() == 0
assert take(0, "cuMemAllocAsync", None)[0] == 0
cuda.fake_capture(1)                                               # memory of a graph
assert take(GIB, "cuMemAllocAsync", c_void_p(1000))[0] == 0
assert (alloc_async(), managed()) == (2, 0)
assert take(GIB, "cuMemAllocFromPoolAsync", c_void_p(2000), None)[0] == 0 and managed() == 0
cuda.fake_current(-1)
assert take(GIB)[0] == 201 and managed() == 0                      # no context: the driver's word
""")


def test_leaves_devices_without_concurrent_managed_access(generous: Container) -> None:
    generous.check("assert take(GIB)[0] == 0 and (alloc(), managed()) == (1, 0)", "-DNO_CONCURRENT")


def test_frees_converted_memory_behind_the_work_of_its_stream(generous: Container) -> None:
    generous.check("""
pointer = take(GIB)[1]
assert give(pointer, "cuMemFreeAsync", c_void_p(1000)) == 0
assert (cuda.fake_synchronized(), free(), free_async()) == (1000, 1, 0)
assert give(pointer) == 1                                          # it is gone
pointer = take(GIB)[1]
cuda.fake_capture(1)
assert give(pointer, "cuMemFreeAsync", c_void_p(1000)) == 801      # not the graph's: nothing is freed
assert give(pointer) == 0
assert give(0) == 0 and give(0x1234) == 1                          # unknown frees reach the driver
assert give(0x1234, "cuMemFreeAsync", None) == 1 and free_async() == 2
""")


def test_export_of_converted_memory_fails_as_for_managed_memory(generous: Container) -> None:
    generous.check("""
pointer = take(GIB)[1]
assert cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), c_uint64(pointer)) == 1
""")


def test_gives_converted_pitched_memory_the_rows_of_the_driver(generous: Container) -> None:
    generous.check("""
step, pointer = c_size_t(), c_uint64()
def rows(width, height, element):
    return cuda.cuMemAllocPitch_v2(byref(pointer), byref(step), c_size_t(width), c_size_t(height), element)
assert rows(1000, 10, 4) == 0 and step.value == 1024 and (pitch(), managed()) == (0, 1)
assert rows(1000, 10, 3) == 1 and managed() == 1                   # the driver refuses this
assert cuda.cuMemAllocPitch_v2(byref(pointer), None, c_size_t(1), c_size_t(1), 4) == 1
""")


def test_tells_the_other_library_which_gpu_the_mapping_is_for(generous: Container, tmp_path: Path) -> None:
    source = tmp_path / "shim.c"
    source.write_text(
        '#include <string.h>\n#define E __attribute__ ((visibility ("default")))\n'
        "static char last[17];\nE void nvc_shim_next_managed (const char *uuid);\nE const char *last_uuid (void);\n"
        "void nvc_shim_next_managed (const char *uuid) { memcpy (last, uuid, 16); }\n"
        "const char *last_uuid (void) { return last; }\n"
    )
    shim = compile_library(source, tmp_path / "libshim.so")
    program = f"""
other = ctypes.CDLL({str(shim)!r}); other.last_uuid.restype = ctypes.c_char_p
assert take(MIB)[0] == 0 and other.last_uuid() == b"\\x10" * 16
"""
    done = generous.run(program, preload=(shim,))
    assert (done.returncode, done.stderr) == (0, "")


def test_keeps_the_quota_of_an_unknown_driver(counted: Container) -> None:
    counted.check("""
assert information() == (64 * MIB, 64 * MIB)
result, first = take(62 * MIB)
assert result == 0 and take(3 * MIB)[0] == 2 and alloc() == 1      # refused before the driver is asked
assert take(2 * MIB)[0] == 0 and information() == (0, 64 * MIB)    # exactly at the limit
assert take(1)[0] == 2
cuda.fake_current(1)
assert information() == (32 * MIB, 32 * MIB)                       # another GPU
cuda.fake_current(0)
assert give(first) == 0 and information() == (62 * MIB, 64 * MIB)
for _ in range(2000):
    result, pointer = take(2 * MIB)
    assert result == 0 and give(pointer) == 0
assert information() == (62 * MIB, 64 * MIB)                       # no drift
total = c_size_t()
assert cuda.cuDeviceTotalMem_v2(byref(total), 1) == 0 and total.value == 32 * MIB
narrow = c_uint()
assert cuda.cuDeviceTotalMem(byref(narrow), 0) == 0 and narrow.value == 64 * MIB
assert cuda.cuMemGetInfo_v2(None, None) == 0 and cuda.cuDeviceTotalMem_v2(None, 0) == 1
assert cuda.cuDeviceTotalMem_v2(byref(total), 7) == 101
only = c_size_t()
assert cuda.cuMemGetInfo_v2(byref(only), None) == 0 and only.value == 62 * MIB
""")


def test_charges_every_way_to_memory_of_an_unknown_driver(counted: Container) -> None:
    counted.check("""
def left():
    return information()[0] // MIB
def rows(*arguments):
    pointer, step = c_uint64(), c_size_t()
    return cuda.cuMemAllocPitch_v2(byref(pointer), byref(step), *map(c_size_t, arguments), 4), pointer.value
everything = []
def made(allocation, way, remaining):
    everything.append((allocation, way))
    assert left() == remaining, way
made(take(4 * MIB, "cuMemAllocManaged", 1), "cuMemFree_v2", 60)
made(take(4 * MIB, "cuMemAllocAsync", None), "cuMemFreeAsync", 56)
made(take(4 * MIB, "cuMemAllocAsync_ptsz", None), "cuMemFreeAsync_ptsz", 52)
made(take(4 * MIB, "cuMemAllocFromPoolAsync", c_void_p(2000), None), "cuMemFreeAsync", 48)
made(rows(1, 8192), "cuMemFree_v2", 44)                            # rows of 512
class Descriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
                ("format", c_int), ("channels", c_uint), ("flags", c_uint)]
array = c_uint64()
assert cuda.cuArray3DCreate_v2(byref(array), byref(Descriptor(1024, 1024, 0, 0x20, 1, 0))) == 0 and left() == 40
assert cuda.cuArray3DCreate_v2(byref(array), byref(Descriptor(1 << 20, 1 << 20, 9, 0x20, 4, 0))) == 2
assert cuda.cuArray3DCreate_v2(byref(array), None) == 1 and left() == 40
everything.append(((0, array.value), "cuArrayDestroy"))
for name in ("cuMemAllocManaged", "cuMemAllocAsync"):
    assert take(41 * MIB, name, 1)[0] == 2
for (result, pointer), way in everything:
    assert result == 0 and give(pointer, way, None) == 0, way
assert left() == 64
""")


def test_charges_the_device_that_memory_is_on(counted: Container) -> None:
    counted.check("""
import struct
def create(device, bytes):
    handle = c_uint64()
    properties = struct.pack("iiiiP8x", 1, 0, 1, device, 0)
    return cuda.cuMemCreate(byref(handle), c_size_t(bytes), properties, c_uint64(0)), handle.value
def left(device):
    cuda.fake_current(device)
    answer = information()[0] // MIB
    cuda.fake_current(0)
    return answer
assert create(1, 33 * MIB)[0] == 2
result, handle = create(1, 8 * MIB)
assert result == 0 and (left(0), left(1)) == (64, 24)
assert cuda.cuMemMap(c_uint64(0x1000), c_size_t(8 * MIB), c_size_t(0), c_uint64(handle), c_uint64(0)) == 0
assert cuda.cuMemRelease(c_uint64(handle)) == 0 and left(1) == 24  # the mapping holds the memory
assert cuda.cuMemUnmap(c_uint64(0x1000), c_size_t(8 * MIB)) == 0 and left(1) == 32
assert cuda.cuMemRelease(c_uint64(handle)) == 1                    # the driver's answer
result, pointer = take(8 * MIB, "cuMemAllocAsync", c_void_p(1001))
assert result == 0 and (left(0), left(1)) == (64, 24)
assert give(pointer, "cuMemFreeAsync", None) == 0
result, pointer = take(8 * MIB, "cuMemAllocFromPoolAsync", c_void_p(2001), None)
assert result == 0 and (left(0), left(1)) == (64, 24)
assert take(40 * MIB, "cuMemAllocFromPoolAsync", c_void_p(2001), None)[0] == 2 and (left(0), left(1)) == (64, 24)
assert create(-1, MIB)[0] == 201                                   # nonsense is the driver's to refuse
""")


def test_keeps_one_quota_for_all_processes(counted: Container) -> None:
    done = counted.run("""
import os, subprocess
assert take(40 * MIB)[0] == 0
code = '''
import ctypes
cuda = ctypes.CDLL("libcuda.so.1"); cuda.fake_current(0)
pointer = ctypes.c_uint64()
def take(size): return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size))
raise SystemExit(take(25 << 20) * 10 + take(24 << 20))
'''
assert subprocess.run([sys.executable, "-S", "-E", "-c", code]).returncode == 20
assert take(24 * MIB)[0] == 0      # the child is gone and so is its charge
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert used(counted) == 0


def test_says_the_same_through_nvml(counted: Container) -> None:
    counted.check("""
nvml = ctypes.CDLL("libnvidia-ml.so.1")
take(14 * MIB)
first, second = (c_uint64 * 3)(), (c_uint64 * 5)(2)
assert nvml.nvmlDeviceGetMemoryInfo(c_void_p(1), first) == 0 and list(first) == [64 * MIB, 50 * MIB, 14 * MIB]
assert nvml.nvmlDeviceGetMemoryInfo_v2(c_void_p(1), second) == 0
assert list(second) == [2, 64 * MIB, 0, 50 * MIB, 14 * MIB]
assert nvml.nvmlDeviceGetMemoryInfo(c_void_p(1), None) == 2 and nvml.nvmlDeviceGetMemoryInfo(None, first) == 2
""")


def test_follows_limits_that_change(counted: Container) -> None:
    content = limits.encode(limits.Limits((gpu(0, 8 * MIB), gpu(1, 0)), driver=UNKNOWN), 2)
    counted.check(f"""
assert take(32 * MIB)[0] == 0
with open({str(counted.limits)!r}, "r+b") as file:
    file.write({content!r})
assert take(MIB)[0] == 2 and information() == (0, 8 * MIB)          # saturates
cuda.fake_current(1)
assert information() == (16 * GIB, 16 * GIB)                        # no limit
""")


@pytest.mark.parametrize("content", [b"", b"\0" * 8192, None], ids=["empty", "zeroes", "missing"])
def test_gives_no_memory_where_limits_cannot_be_read(counted: Container, content: bytes | None) -> None:
    if content is None:
        counted.limits.unlink()
    else:
        counted.limits.write_bytes(content)
    counted.check("""
assert take(MIB)[0] == 2 and take(MIB, "cuMemAllocAsync", None)[0] == 2 and (alloc(), alloc_async()) == (0, 0)
assert give(0x1234) == 1 and information() == (16 * GIB, 16 * GIB)
""")


def test_does_nothing_for_a_known_driver_without_oversubscription(tmp_path: Path) -> None:
    Container(tmp_path, gpu(0, MIB)).check("""
assert take(GIB)[0] == 0 and (alloc(), managed()) == (1, 0)
assert information() == (15 * GIB, 16 * GIB)
assert cuda.cuMemCreate(None, c_size_t(1), None, c_uint64(0)) == 1
""")
    with (tmp_path / "region").open("rb") as file:
        assert region.read(file.fileno(), 1).header.high == 0


def test_refuses_what_an_old_driver_does_not_have(tmp_path: Path) -> None:
    Container(tmp_path, gpu(0, 64 * GIB, oversubscribe=True)).check(
        """
assert not hasattr(cuda, "cuMemAllocAsync") and not hasattr(cuda, "cuGetProcAddress")
assert take(GIB)[0] == 0 and managed() == 1
""",
        "-DOLD",
    )


def test_works_in_a_child_that_was_forked(generous: Container) -> None:
    generous.check("""
import os, threading
stop = False
def work():
    while not stop:
        give(take(MIB)[1])
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(take(MIB)[0] + give(take(MIB)[1]))
    assert os.waitpid(child, 0)[1] == 0
stop = True
for thread in threads: thread.join()
""")
