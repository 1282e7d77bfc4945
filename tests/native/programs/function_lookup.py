"""Look-ups of the driver's functions from Python: ``function_lookup.py CASE ...``."""

from __future__ import annotations

import ctypes
import locale
import os
import sys
from ctypes import byref, c_int, c_uint64, c_void_p

from fake_cuda import MIB, cuda, export_table, run_case, take

VERSIONS = (1000, 2000, 3000, 3020, 6000, 10020, 11000, 11020, 11030, 11040, 12000, 12080, 13000, 14000)
LOOKED_UP = (
    *("curl_easy_init", "cublasCreate_v2", "cudnnCreate", "cudaMalloc", "customer_x"),
    *("cuMemAlloc_v2", "cuMemGetInfo_v2"),
)
libc = ctypes.CDLL(None, use_errno=True)


class Information(ctypes.Structure):
    """Dl_info."""

    _fields_ = [("file", ctypes.c_char_p), ("base", c_void_p), ("symbol", ctypes.c_char_p), ("address", c_void_p)]


def where(pointer: int | None) -> str:
    """The library and the name that dladdr knows; "-" where the name is that of something before it."""
    information = Information()
    if pointer is None or pointer == 5:
        return str(pointer)
    assert libc.dladdr(c_void_p(pointer), byref(information))
    symbol = information.symbol.decode() if information.address == pointer else "-"
    return information.file.decode().rpartition("/")[2] + " " + symbol


def addresses(*names: str) -> None:
    """Print every answer of both versions of cuGetProcAddress."""
    for name in names:
        for flags in (0, 1, 2, 3):
            for version in VERSIONS:
                status = c_int(77)
                ways = (
                    (cuda.cuGetProcAddress,),
                    (cuda.cuGetProcAddress_v2, byref(status)),
                    (cuda.cuGetProcAddress_v2, None),
                )
                for ask, *more in ways:
                    pointer = c_void_p(5)
                    result = ask(name.encode(), byref(pointer), version, c_uint64(flags), *more)
                    print(name, flags, version, result, status.value, where(pointer.value))
    result = cuda.cuGetProcAddress_v2(b"cuInit", None, 12000, c_uint64(0), None)
    print(result, cuda.cuGetProcAddress(b"cuMemAlloc", None, 12000, c_uint64(77)))


def deeply_bound(library: str) -> None:
    """With RTLD_DEEPBIND a library finds its own needs before what is preloaded. Nothing reaches stdout."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    saved = os.dup(1)
    os.dup2(sys.stdout.fileno(), 1)
    deep = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
    assert deep.curl_easy_init() == 1 and take(MIB)[0] == 0
    ctypes.CDLL(None).fflush(None)
    os.dup2(saved, 1)


def private_table() -> None:
    identity, table = ctypes.create_string_buffer(16), c_void_p()
    assert cuda.cuGetExportTable(byref(table), identity) == 0 and export_table() == 1
    assert table.value == ctypes.addressof(identity)


def state() -> tuple[list[str], dict[str, str], str, list[str]]:
    """Of this process: signals, umask and threads; environment; locale; descriptors."""
    with open("/proc/self/status") as file:
        status = [line for line in file if line.startswith(("Umask", "Sig", "Shd", "Threads"))]
    return status, dict(os.environ), locale.setlocale(locale.LC_ALL), sorted(os.listdir("/proc/self/fd"))


def unchanged_process() -> None:
    before = state()
    ctypes.set_errno(33)
    for name in LOOKED_UP:
        for library in (libc, cuda):
            getattr(library, name, None)
    assert ctypes.get_errno() == 33 and state() == before
    with open("/proc/self/maps") as maps:
        assert not any("limits" in line or "region" in line for line in maps)
    assert take(MIB)[0] == 0
    after = state()
    assert after[:3] == before[:3]
    paths = ["/proc/self/fd/" + name for name in set(after[3]) - set(before[3])]
    assert all(os.readlink(path).endswith("region") for path in paths if os.path.exists(path))


run_case(globals())
