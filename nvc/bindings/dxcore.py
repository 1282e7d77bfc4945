"""The graphics adapters of Windows, through WSL's libdxcore.so.

Names, numbers and layouts: Microsoft's d3dkmthk.h and d3dukmdt.h; WCHAR is wchar_t there (specs of libnvidia-container
8.1: the reference reads it so). Called in the process that has no rights, like NVML.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_int32, c_uint32, c_uint64, c_void_p, c_wchar, sizeof

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARY = "libdxcore.so"
#: Limits of plausible answers: adapters of one machine, characters of a path.
ADAPTERS, PATH_LENGTH = 64, 1024

_KMTQAITYPE_DRIVERVERSION, _KMTQAITYPE_QUERYREGISTRY = 13, 48
_D3DDDI_QUERYREGISTRY_DRIVERSTOREPATH = 2
_D3DDDI_QUERYREGISTRY_STATUS_SUCCESS = 0
_INCLUDE_COMPUTE_ONLY = 1
_MAX_PATH = 260


class _AdapterInfo(Structure):
    _fields_ = (
        ("hAdapter", c_uint32),
        ("AdapterLuid", c_uint32 * 2),
        ("NumOfSources", c_uint32),
        ("bPresentMoveRegionsPreferred", c_uint32),
    )


class _EnumAdapters2(Structure):
    _fields_ = (("NumAdapters", c_uint32), ("pAdapters", POINTER(_AdapterInfo)))


class _EnumAdapters3(Structure):
    _fields_ = (("Filter", c_uint64), ("NumAdapters", c_uint32), ("pAdapters", POINTER(_AdapterInfo)))


class _QueryAdapterInfo(Structure):
    _fields_ = (
        ("hAdapter", c_uint32),
        ("Type", c_uint32),
        ("pPrivateDriverData", c_void_p),
        ("PrivateDriverDataSize", c_uint32),
    )


class _QueryRegistry(Structure):
    """D3DDDI_QUERYREGISTRY_INFO, with room for the path where the header has one character of it."""

    _fields_ = (
        ("QueryType", c_uint32),
        ("QueryFlags", c_uint32),
        ("ValueName", c_wchar * _MAX_PATH),
        ("ValueType", c_uint32),
        ("PhysicalAdapterIndex", c_uint32),
        ("OutputValueSize", c_uint32),
        ("Status", c_uint32),
        ("OutputString", c_uint32 * PATH_LENGTH),
    )


def adapters(path: str) -> tuple[tuple[int, str], ...]:
    """(version of the driver's WDDM, its driver store) of every adapter, in Windows' order.

    The version is like 3000 for WDDM 3.0; the store is "" where the adapter does not tell. path: of the library, or its
    name. Raises OSError when it cannot be loaded (with dlerror's text) or does not answer.
    """
    library = ctypes.CDLL(path, mode=os.RTLD_NOW)
    try:
        query = library.D3DKMTQueryAdapterInfo
        handles = _handles(library)
    except AttributeError as error:
        raise OSError(f"{path}: {error}") from error
    return tuple((_version(query, handle), _store(query, handle)) for handle in handles)


def _handles(library: Any) -> list[int]:
    """Also compute-only adapters, where the library is new enough. Raises AttributeError, OSError."""
    newer = getattr(library, "D3DKMTEnumAdapters3", None)
    enumerate_ = newer if newer is not None else library.D3DKMTEnumAdapters2
    question = _EnumAdapters2() if newer is None else _EnumAdapters3(Filter=_INCLUDE_COMPUTE_ONLY)
    _check("enumerating adapters", enumerate_(byref(question)))
    found = (_AdapterInfo * min(question.NumAdapters, ADAPTERS))()
    if not len(found):
        return []
    question.NumAdapters, question.pAdapters = len(found), found
    _check("enumerating adapters", enumerate_(byref(question)))
    return [found[index].hAdapter for index in range(min(question.NumAdapters, len(found)))]


def _check(what: str, status: int) -> None:
    if c_int32(status).value < 0:
        raise OSError(f"{what}: {LIBRARY} returns {status & 0xFFFFFFFF:#010x}")


def _version(query: Any, handle: int) -> int:
    version = c_uint32()
    return version.value if _ask(query, handle, _KMTQAITYPE_DRIVERVERSION, version) else 0


def _store(query: Any, handle: int) -> str:
    info = _QueryRegistry(QueryType=_D3DDDI_QUERYREGISTRY_DRIVERSTOREPATH)
    info.OutputValueSize = sizeof(info.OutputString)
    if not _ask(query, handle, _KMTQAITYPE_QUERYREGISTRY, info):
        return ""
    if info.Status != _D3DDDI_QUERYREGISTRY_STATUS_SUCCESS:
        return ""
    codes = info.OutputString[: min(info.OutputValueSize // 4, PATH_LENGTH)]
    end = codes.index(0) if 0 in codes else len(codes)
    try:
        return "".join(map(chr, codes[:end]))
    except (ValueError, OverflowError):
        return ""


def _ask(query: Any, handle: int, kind: int, answer: Any) -> bool:
    place = ctypes.cast(byref(answer), c_void_p)
    question = _QueryAdapterInfo(handle, kind, place, sizeof(answer))
    return int(query(byref(question))) >= 0
