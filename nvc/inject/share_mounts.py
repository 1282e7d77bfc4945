"""A share in the plan of a container: pure, imported for a container with a share only.

The files on the machine are made by one operation, and shown to a container with a library by four bind mounts. The
region is the one file of them that a container can write; with CAP_SYS_ADMIN it can write all of them, and the host
trusts none. A container without a library, which the guard holds, has none of them.
"""

from __future__ import annotations

from nvc.container.operations import DIRECTORY, REGULAR, BindMount, ShareFiles
from nvc.share import preload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.container.operations import Operation

#: File of an entry of the store -> its place in the container, mount attributes.
MOUNTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("limits.copy", preload.LIMITS, ("ro", "nodev", "nosuid", "noexec")),
    ("region", preload.REGION, ("nodev", "nosuid", "noexec")),
    ("preload", preload.FILE, ("ro", "nodev", "nosuid", "noexec")),
)
_LIBRARIES = ("ro", "nodev", "nosuid")


def mounts(files: ShareFiles, libraries: str) -> tuple[Operation, ...]:
    """The operations of a share. libraries: the machine's directory of preloaded libraries by platform, "" for none."""
    if not libraries:
        return (files,)
    entry = f"{files.store}/{files.key}"
    shown = (BindMount(f"{entry}/{name}", place, REGULAR, attributes, own=True) for name, place, attributes in MOUNTS)
    return (files, BindMount(libraries, preload.DIRECTORY, DIRECTORY, _LIBRARIES, own=True), *shown)
