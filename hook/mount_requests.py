"""Devices asked for by volume mounts: ``/dev/null`` on /var/run/nvidia-container-devices/REQUEST.

Kubernetes' device plugin asks like this where images are not trusted to ask by environment: mounts are added by the
cluster, not by the image. Forms of REQUEST: nvidia-container-toolkit.md 1.6.2.
"""

from __future__ import annotations

from nvc.base.errors import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_CDI, _IMEX = "cdi/", "imex/"


def devices(requests: Iterable[str], warn: Callable[[str], None]) -> tuple[str, ...]:
    """The devices among ``requests``; a CDI form becomes VENDOR/CLASS=NAME. What is malformed is named and skipped."""
    found: list[str] = []
    for request in requests:
        if request.startswith(_IMEX):
            continue
        if not request.startswith(_CDI):
            found.append(request)
            continue
        name = qualified(request.removeprefix(_CDI))
        if name:
            found.append(name)
        else:
            warn(f"ignoring the volume mount request {shown(request)}: not cdi/VENDOR/CLASS/NAME")
    return tuple(dict.fromkeys(found))


def imex_channels(requests: Iterable[str]) -> tuple[str, ...]:
    """The IMEX channels among ``requests``, as they were written."""
    return tuple(dict.fromkeys(request.removeprefix(_IMEX) for request in requests if request.startswith(_IMEX)))


def qualified(text: str) -> str:
    """``VENDOR/CLASS=NAME`` for that form or for VENDOR/CLASS/NAME; "" for anything else."""
    kind, equals, name = text.partition("=")
    if not equals:
        kind, _, name = text.rpartition("/")
    vendor, slash, kind_class = kind.partition("/")
    whole = slash and vendor and kind_class and "/" not in kind_class and name and "/" not in name
    return f"{vendor}/{kind_class}={name}" if whole else ""
