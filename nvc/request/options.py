"""The options of the library's functions as Records, and their names (libnvidia-container.md 2.2.1).

Pure. One row a name; an unknown name is an error.
"""

from __future__ import annotations

from nvc.base.errors import ContainerError, DetectionError, InitializationError
from nvc.base.record import Record
from nvc.model import DriverOptions
from nvc.request.capabilities import WORDS as CAPABILITY_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvc.base.errors import NvcError

#: NVC_ARG_MAX is 256: a text of this many bytes, or longer, does not fit with its end mark.
TEXT_LIMIT = 256


class LibraryOptions(Record):
    """load_kmods: load the kernel modules and make the nodes; no_create_imex_channels: but not those of IMEX."""

    load_kmods: bool = False
    no_create_imex_channels: bool = False


class ContainerOptions(Record):
    """What a container gets.

    supervised: an OCI runtime made the container and is our parent; False: standalone (enroot, LXC, a chroot).
    no_cgroups: leave the device cgroup alone. no_devbind: do not bind device nodes (proc files are bound).
    capabilities: names of ``nvc.request.capabilities`` in the order given, each once.
    compat_mode: what to do with CUDA forward-compatibility libraries: "mount", "ldconfig" or "disabled".
    """

    supervised: bool = False
    no_cgroups: bool = False
    no_devbind: bool = False
    capabilities: tuple[str, ...] = ()
    compat_mode: str = "mount"


#: What the reference uses when its API is given no container options at all.
DEFAULT_CONTAINER_OPTIONS = ContainerOptions(no_cgroups=True, no_devbind=True, capabilities=("utility",))

# Name -> field.
LIBRARY_OPTIONS = {"load-kmods": "load_kmods", "no-create-imex-channels": "no_create_imex_channels"}
DRIVER_OPTIONS = {
    "no-glvnd": "no_glvnd",
    "no-uvm": "no_uvm",
    "no-modeset": "no_modeset",
    "no-mps": "no_mps",
    "no-persistenced": "no_persistenced",
    "no-fabricmanager": "no_fabricmanager",
    "no-gsp-firmware": "no_gsp_firmware",
    "csv-all": "csv_all",
}
# Name -> compat mode. no-cntlibs is 1.17.4's name for what 1.18 calls disabled.
COMPAT_MODES = {
    "no-cntlibs": "disabled",
    "cuda-compat-mode=disabled": "disabled",
    "cuda-compat-mode=ldconfig": "ldconfig",
    "cuda-compat-mode=mount": "mount",
}


def library_options(names: Sequence[str]) -> LibraryOptions:
    """Options of ``nvc_init``. Raises InitializationError."""
    return LibraryOptions(**_flags(names, LIBRARY_OPTIONS, InitializationError))


def driver_options(names: Sequence[str]) -> DriverOptions:
    """Options of ``nvc_driver_info_new``. Raises DetectionError."""
    return DriverOptions(**_flags(names, DRIVER_OPTIONS, DetectionError))


def container_options(names: Sequence[str]) -> ContainerOptions:
    """Options of ``nvc_container_new``.

    Raises ContainerError; exactly one of supervised and standalone must be there. Compat modes: `disabled` wins
    over the others, which exclude each other; none means `mount`.
    """
    origins: set[str] = set()
    modes: set[str] = set()
    flags: set[str] = set()
    capabilities: dict[str, None] = {}
    for name in _fitting(names, ContainerError):
        if name in CAPABILITY_NAMES:
            capabilities[name] = None
        elif name in COMPAT_MODES:
            modes.add(COMPAT_MODES[name])
        elif name in ("supervised", "standalone"):
            origins.add(name)
        elif name in ("no-cgroups", "no-devbind"):
            flags.add(name)
        else:
            known = ("supervised", "standalone", "no-cgroups", "no-devbind", *COMPAT_MODES, *CAPABILITY_NAMES)
            raise _unknown(name, known, ContainerError)
    if len(origins) != 1:
        raise ContainerError("invalid mode of operation", hint="give exactly one of supervised and standalone")
    if "disabled" in modes:
        modes = {"disabled"}
    if len(modes) > 1:
        raise ContainerError("only one cuda-compat-mode can be specified at a time")
    return ContainerOptions(
        supervised="supervised" in origins,
        no_cgroups="no-cgroups" in flags,
        no_devbind="no-devbind" in flags,
        capabilities=tuple(capabilities),
        compat_mode=modes.pop() if modes else "mount",
    )


def _fitting(names: Sequence[str], error: type[NvcError]) -> Sequence[str]:
    # The reference has one buffer for all of them, with a space between two.
    if len(" ".join(names).encode("utf-8", "surrogateescape")) >= TEXT_LIMIT:
        raise error("too many options", hint=f"the option text may have {TEXT_LIMIT - 1} bytes")
    return names


def _unknown(name: str, known: tuple[str, ...], error: type[NvcError]) -> NvcError:
    return error(f"invalid option: {name}", hint=f"known are: {', '.join(known)}")


def _flags(names: Sequence[str], fields: dict[str, str], error: type[NvcError]) -> dict[str, bool]:
    flags = {}
    for name in _fitting(names, error):
        if name not in fields:
            raise _unknown(name, tuple(fields), error)
        flags[fields[name]] = True
    return flags
