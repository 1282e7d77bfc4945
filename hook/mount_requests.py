"""Devices asked for by volume mounts: ``/dev/null`` on /var/run/nvidia-container-devices/WISH.

Kubernetes' device plugin asks like this where images are not trusted to ask by environment: who may add a mount is
the cluster, not the image. Forms of WISH: nvidia-container-toolkit.md 1.6.2.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CDI, _IMEX = "cdi/", "imex/"


def devices(wishes: Iterable[str], warn: Callable[[str], None]) -> tuple[str, ...]:
    """The devices among ``wishes``; a CDI form becomes VENDOR/CLASS=NAME. What is malformed is named and skipped."""
    found: list[str] = []
    for wish in wishes:
        if wish.startswith(_IMEX):
            continue
        if not wish.startswith(_CDI):
            found.append(wish)
            continue
        name = qualified(wish.removeprefix(_CDI))
        if name:
            found.append(name)
        else:
            warn(f"ignoring the volume mount request {wish!r}: not cdi/VENDOR/CLASS/NAME")
    return tuple(dict.fromkeys(found))


def imex_channels(wishes: Iterable[str]) -> tuple[str, ...]:
    """The IMEX channels among ``wishes``, as they were written."""
    return tuple(dict.fromkeys(wish.removeprefix(_IMEX) for wish in wishes if wish.startswith(_IMEX)))


def qualified(text: str) -> str:
    """``VENDOR/CLASS=NAME`` for that form or for VENDOR/CLASS/NAME; "" for anything else."""
    kind, equals, name = text.partition("=")
    if not equals:
        kind, _, name = text.rpartition("/")
    vendor, slash, kind_class = kind.partition("/")
    whole = slash and vendor and kind_class and "/" not in kind_class and name and "/" not in name
    return f"{vendor}/{kind_class}={name}" if whole else ""
