"""How a share's library gets into a container's programs: the loader's /etc/ld.so.preload, and where the library is.

glibc's loader (elf/rtld.c, do_preload) takes from that file the names of libraries that every program gets, also one
with the set-user-ID bit: separated by white space or colons, "#" begins a comment. It puts the machine's word for
``$PLATFORM``. musl's loader and programs without a loader read nothing.
"""

from __future__ import annotations

import os

#: The loader's file, and how much of an image's own is read: bytes.
FILE = "/etc/ld.so.preload"
LIMIT = 64 << 10
#: Where a container has the libraries (native/shim/share.h, SHARE_DIRECTORY).
DIRECTORY = "/usr/lib/nvc"
LIBRARY, MANAGED_LIBRARY, API_LIBRARY = "libnvc-shim.so", "libnvc-shim-managed.so", "libnvc-shim-api.so"
LIBRARIES = (LIBRARY, MANAGED_LIBRARY, API_LIBRARY)
#: Where a container has limits and region (SHARE_LIMITS_PATH, SHARE_REGION_PATH).
LIMITS, REGION = "/run/nvc-share/limits", "/run/nvc-share/region"
#: Machine -> words that its loaders may put for it beside its own name, and those of its 32-bit programs' loader
#: (glibc: sysdeps/x86/cpu-features.c; the kernel's AT_PLATFORM).
PLATFORMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "x86_64": (("haswell", "xeon_phi"), ("i386", "i486", "i586", "i686")),
    "aarch64": ((), ("v7l", "v8l")),
}


def names(*, memory: bool, api: bool) -> tuple[str, ...]:
    """The libraries of a share. memory: it limits memory, so a refusal of managed memory needs the right error. api:
    outcomes change at libcuda's functions (oversubscription, a driver that rm does not know); that includes the error.
    """
    if api:
        return LIBRARY, API_LIBRARY
    return (LIBRARY, MANAGED_LIBRARY) if memory else (LIBRARY,)


def lines(*, memory: bool, api: bool) -> tuple[str, ...]:
    """What a container's file gets; as ``names``."""
    return tuple(f"{DIRECTORY}/$PLATFORM/{name}" for name in names(memory=memory, api=api))


def text(image: bytes, wanted: tuple[str, ...]) -> bytes:
    """``image``, the file as it was, with the ``wanted`` lines at its end, less those that are entries already."""
    present = entries(image)
    missing = [line.encode("ascii") for line in wanted if line.encode("ascii") not in present]
    if not missing:
        return image
    if image and not image.endswith(b"\n"):
        image += b"\n"
    return image + b"".join(line + b"\n" for line in missing)


def entries(content: bytes) -> list[bytes]:
    """The names in a file's text, in order."""
    bare = b" ".join(line.partition(b"#")[0] for line in content.split(b"\n"))
    return bare.replace(b":", b" ").split()


def directory() -> str:
    """The directory on this machine that holds the libraries, by platform; "" when they are nowhere.

    Beside our packages where they are installed, inside them in a wheel, among the built things in a checkout.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    above = os.path.dirname(package)
    for place in (f"{above}/preload", f"{package}/native/preload", f"{above}/build/native/preload"):
        if os.path.exists(f"{place}/{os.uname().machine}/{LIBRARY}"):
            return place
    return ""
