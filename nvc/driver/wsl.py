"""WSL2: the driver is Windows', and its files are in a driver store that libdxcore.so names.

Source: libnvidia-container.md 3.3 and 8.1.

What differs from other machines: one device node for everything, no kernel module of NVIDIA's and nothing of it below
/proc, no firmware, no MIG. The libraries in the loader cache are small ones that load those of the driver store.
"""

from __future__ import annotations

import os
import posixpath
import stat

from nvc.base.errors import DetectionError, InitializationError, reason
from nvc.driver import binaries, nvml, tables
from nvc.driver.libraries import Chooser, host_arch, rows
from nvc.driver.locate import host_path, resolve, status
from nvc.driver.places import WSL_LIBRARIES
from nvc.model import DXG_NODE, NVCAPS_NONE, WSL, DeviceNode, DriverFile, DriverInfo, Gpu, Inventory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from nvc.base.log import Log
    from nvc.driver.facts import NvmlGpu, NvmlSystem
    from nvc.driver.tables import Library
    from nvc.formats import ldcache
    from nvc.model import DriverOptions, Host

#: WDDM of the first Windows driver that works below WSL (libnvidia-container.md 8.1).
OLDEST_WDDM = 2700
_CUDA = "libcuda.so.1.1"
_DXCORE = "libdxcore.so"
_HINT = "update the graphics driver in Windows, then `wsl --shutdown`"


def initialize(
    binding: Any, load: Callable[[str], None], adapters: Callable[[str], Sequence[tuple[int, str]]], log: Log
) -> nvml.Nvml:
    """The NVML of the driver store. Runs in the driver service, without rights.

    adapters: ``nvc.bindings.dxcore.adapters``. Raises InitializationError.
    """
    try:
        found = adapters(_library())
    except OSError as error:
        raise InitializationError(f"load library failed: {error}", hint=_HINT) from error
    store = choose_store(found, log)
    path = f"{store}/{nvml.LIBRARY}"
    # Very old stores have none; the loader finds the one in WSL's own directory.
    return nvml.initialize(binding, load, path if os.path.exists(path) else nvml.LIBRARY, store=store)


def _library() -> str:
    # By path first: /etc/wsl.conf can keep WSL's directory out of the loader's configuration.
    path = f"{WSL_LIBRARIES}/{_DXCORE}"
    return path if os.path.exists(path) else _DXCORE


def choose_store(adapters: Sequence[tuple[int, str]], log: Log) -> str:
    """The driver store of the first adapter that is NVIDIA's, one with CUDA before others.

    adapters: (version of WDDM, driver store). Raises InitializationError when there is none.
    """
    good = []
    for number, (version, store) in enumerate(adapters):
        problem = f"WDDM {version} is older than {OLDEST_WDDM}" if version < OLDEST_WDDM else store_problem(store)
        if not problem and not any(os.path.exists(f"{store}/{name}") for name in tables.STORE_FILES):
            problem = f"no driver of NVIDIA's in {store}"
        if problem:
            log.info(f"graphics adapter {number} is skipped: {problem}")
        else:
            good.append(store)
    for store in good:
        if os.path.exists(f"{store}/{_CUDA}"):
            return store
    if good:
        return good[0]
    raise InitializationError(
        f"none of the {len(adapters)} graphics adapters that Windows shows has a driver of NVIDIA's for WSL", hint=_HINT
    )


def store_problem(path: str) -> str:
    """Why a text cannot be the path of a driver store, or ""."""
    if not path.startswith("/") or path.startswith("//") or posixpath.normpath(path) != path or path.count("/") < 2:
        return f"{path!r} is no path of a driver store"
    return "" if path.isprintable() else f"{path!r} has a control character"


class WslChooser(Chooser):
    """Accepts files of any version; one of WSL's own directory is not replaced by another."""

    def _consider(self, entry: ldcache.CacheEntry, candidates: list[Library], machine: str) -> None:
        try:
            path = resolve(self._root, entry.path)
        except OSError as error:
            self._skip(entry.path, f"stale entry of the loader cache: {reason(error)}")
            return
        row = next((row for row in candidates if self._chosen.get(row.name) != path), None)
        if row is not None and "/wsl/lib/" not in self._chosen.get(row.name, ""):
            self._chosen[row.name] = path


def discover(
    host: Host, options: DriverOptions, system: NvmlSystem, gpus: Sequence[NvmlGpu], environ: Mapping[str, str]
) -> Inventory:
    """What a container below WSL gets. Raises DetectionError."""
    from nvc.driver.discover import cuda_text

    store = system.driver_store
    problem = store_problem(store)
    if problem:
        raise DetectionError(f"the driver service returned no driver store: {problem}", hint=_HINT)
    libraries, libraries32, warnings = _libraries(host, options)
    components, more = _components(host, store)
    warnings += more
    programs, more = binaries.find_binaries(host.root, (store, *binaries.directories(environ)), options)
    warnings += more
    ipcs, more = binaries.find_ipcs(host.root, environ, options)
    warnings += more
    node = _node(host)
    driver = DriverInfo(
        system.driver_version,
        cuda_text(system.cuda_version),
        libraries,
        libraries32,
        tuple(programs),
        tuple(ipcs),
        (),
        (node,),
        WSL,
        components,
    )
    return Inventory(driver, tuple(_gpu(gpu, node) for gpu in gpus), NVCAPS_NONE, None, None, tuple(warnings))


def _libraries(host: Host, options: DriverOptions) -> tuple[tuple[DriverFile, ...], tuple[DriverFile, ...], list[str]]:
    from nvc.driver.search import read_cache

    arch = host_arch()
    entries = read_cache(host).entries
    wanted = (*rows(glvnd=not options.no_glvnd), *tables.WSL_LIBRARIES)
    native = WslChooser(host.root, "", wanted, kind="library")
    libraries = native.choose(entries, arch.cache, arch.elf)
    warnings = native.skipped + [f"missing library {name}" for name in native.missing]
    if arch.cache32 < 0:
        return libraries, (), warnings
    compat = WslChooser(host.root, "", wanted, kind="library32")
    return libraries, compat.choose(entries, arch.cache32, arch.elf32), warnings


def _components(host: Host, store: str) -> tuple[tuple[DriverFile, ...], list[str]]:
    found, warnings = [], []
    for name in tables.STORE_FILES:
        path = f"{store}/{name}"
        try:
            regular = stat.S_ISREG(status(host.root, path).st_mode)
        except OSError as error:
            warnings.append(f"missing {path}: {reason(error)}")
            continue
        if regular:
            found.append(DriverFile(path, "store", ""))
        else:
            warnings.append(f"skipping {path}: not a file")
    return tuple(found), warnings


def _node(host: Host) -> DeviceNode:
    try:
        found = os.stat(host_path(host.root, resolve(host.root, DXG_NODE)))
    except OSError as error:
        raise DetectionError(f"stat failed: {DXG_NODE}: {reason(error)}", hint=_HINT) from error
    if not stat.S_ISCHR(found.st_mode):
        raise DetectionError(f"invalid device node: {DXG_NODE}", hint=_HINT)
    return DeviceNode(DXG_NODE, os.major(found.st_rdev), os.minor(found.st_rdev))


def _gpu(fact: NvmlGpu, node: DeviceNode) -> Gpu:
    bus_id = f"{fact.domain:08x}:{fact.bus:02x}:{fact.device:02x}.0"
    brand = tables.BRANDS.get(fact.brand, "Unknown")
    return Gpu(fact.index, 0, fact.name, brand, fact.uuid, bus_id, fact.arch, node, "")
