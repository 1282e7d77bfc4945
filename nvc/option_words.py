"""The space-separated option words of the library's functions (libnvidia-container.md 2.2.1), as Records.

Pure. One row per word; an unknown word is an error that names it.
"""

from __future__ import annotations

from nvc.capabilities import WORDS as CAPABILITY_WORDS
from nvc.errors import ContainerError, DetectionError, InitializationError
from nvc.model import DriverOptions
from nvc.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.errors import NvcError

#: NVC_ARG_MAX is 256: a text of this many bytes, or longer, does not fit with its end mark.
TEXT_LIMIT = 256

#: What the reference uses when its API is given no container options at all.
DEFAULT_CONTAINER_OPTIONS = "standalone no-cgroups no-devbind utility"


class LibraryOptions(Record):
    """load_kmods: load the kernel modules and make the nodes; no_create_imex_channels: but not those of IMEX."""

    load_kmods: bool = False
    no_create_imex_channels: bool = False


class ContainerOptions(Record):
    """What a container gets.

    supervised: an OCI runtime made the container and is our parent; False: standalone (enroot, LXC, a chroot).
    no_cgroups: leave the device cgroup alone. no_devbind: do not bind device nodes (proc files are bound).
    capabilities: words of ``nvc.capabilities`` in the order given, each once.
    compat_mode: what to do with CUDA forward-compatibility libraries: "mount", "ldconfig" or "disabled".
    """

    supervised: bool
    no_cgroups: bool = False
    no_devbind: bool = False
    capabilities: tuple[str, ...] = ()
    compat_mode: str = "mount"


# Word -> field.
LIBRARY_WORDS = {"load-kmods": "load_kmods", "no-create-imex-channels": "no_create_imex_channels"}
DRIVER_WORDS = {
    "no-glvnd": "no_glvnd",
    "no-uvm": "no_uvm",
    "no-modeset": "no_modeset",
    "no-mps": "no_mps",
    "no-persistenced": "no_persistenced",
    "no-fabricmanager": "no_fabricmanager",
    "no-gsp-firmware": "no_gsp_firmware",
    "csv-all": "csv_all",
}
# Word -> compat mode. no-cntlibs is 1.17.4's name for what 1.18 calls disabled.
COMPAT_WORDS = {
    "no-cntlibs": "disabled",
    "cuda-compat-mode=disabled": "disabled",
    "cuda-compat-mode=ldconfig": "ldconfig",
    "cuda-compat-mode=mount": "mount",
}


def _split(text: str, error: type[NvcError]) -> list[str]:
    if len(text.encode("utf-8", "surrogateescape")) >= TEXT_LIMIT:
        raise error("too many options", hint=f"the option text may have {TEXT_LIMIT - 1} bytes")
    return [word for word in text.split(" ") if word]


def _unknown(word: str, known: tuple[str, ...], error: type[NvcError]) -> NvcError:
    return error(f"invalid option: {word}", hint=f"known are: {', '.join(known)}")


def _flags(text: str, words: dict[str, str], error: type[NvcError]) -> dict[str, bool]:
    flags = {}
    for word in _split(text, error):
        if word not in words:
            raise _unknown(word, tuple(words), error)
        flags[words[word]] = True
    return flags


def library_options(text: str) -> LibraryOptions:
    """Options of ``nvc_init``. Raises InitializationError."""
    return LibraryOptions(**_flags(text, LIBRARY_WORDS, InitializationError))


def driver_options(text: str) -> DriverOptions:
    """Options of ``nvc_driver_info_new``. Raises DetectionError."""
    return DriverOptions(**_flags(text, DRIVER_WORDS, DetectionError))


def container_options(text: str | None) -> ContainerOptions:
    """Options of ``nvc_container_new``; None means DEFAULT_CONTAINER_OPTIONS.

    Raises ContainerError; exactly one of supervised and standalone must be there. Compat modes: `disabled` wins
    over the others, which exclude each other; none means `mount`.
    """
    origins: set[str] = set()
    modes: set[str] = set()
    flags: set[str] = set()
    capabilities: dict[str, None] = {}
    for word in _split(DEFAULT_CONTAINER_OPTIONS if text is None else text, ContainerError):
        if word in CAPABILITY_WORDS:
            capabilities[word] = None
        elif word in COMPAT_WORDS:
            modes.add(COMPAT_WORDS[word])
        elif word in ("supervised", "standalone"):
            origins.add(word)
        elif word in ("no-cgroups", "no-devbind"):
            flags.add(word)
        else:
            known = ("supervised", "standalone", "no-cgroups", "no-devbind", *COMPAT_WORDS, *CAPABILITY_WORDS)
            raise _unknown(word, known, ContainerError)
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
