"""What the CDI specification allows: names, kinds, versions. Data and pure functions.

Source: github.com/cncf-tags/container-device-interface, SPEC.md; tabulated in the specification of the NVIDIA container
toolkit, 5.1 and 5.11.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Released versions of the format, oldest first. Podman 4.3 takes the first three, Docker 26 up to 0.7.0, Podman 5.4
#: and containerd 1.7 up to 0.8.0.
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
BASE, MOUNT_TYPE, HOST_PATH, DOTTED_CLASS, GIDS, RDT_MONITORING = "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "1.1.0"

HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES = ("b", "c", "u", "p")

_LETTERS = frozenset(string.ascii_letters)
_ALNUM = _LETTERS | frozenset(string.digits)
#: Bytes of all annotations of one object together (Kubernetes' limit, which the CDI library uses).
ANNOTATIONS_LIMIT = 256 << 10


def newest(versions: Iterable[str]) -> str:
    """The newest of some VERSIONS; BASE of none."""
    return max((BASE, *versions), key=VERSIONS.index)


def kind_problem(kind: str) -> str:
    """What is wrong with a kind (``vendor.com/class``), or ""."""
    vendor, slash, name = kind.partition("/")
    if not slash:
        return f"{kind!r} is not VENDOR/CLASS"
    return name_problem("vendor", vendor) or name_problem("class", name)


def name_problem(what: str, name: str) -> str:
    """What is wrong with a vendor or a class, or ""."""
    if not name:
        return f"the {what} is empty"
    if name[0] not in _LETTERS:
        return f"the {what} {name!r} does not start with a letter"
    if name[-1] not in _ALNUM:
        return f"the {what} {name!r} does not end with a letter or digit"
    wrong = next((char for char in name if char not in _ALNUM and char not in "_-."), "")
    return f"the {what} {name!r} contains {wrong!r}; allowed are letters, digits, _ - and ." if wrong else ""


def device_problem(name: str) -> str:
    """What is wrong with a device's name, or ""."""
    if not name:
        return "the name is empty"
    if name[0] not in _ALNUM or name[-1] not in _ALNUM:
        return f"the name {name!r} does not start and end with a letter or digit"
    wrong = next((char for char in name if char not in _ALNUM and char not in "_-.:"), "")
    return f"the name {name!r} contains {wrong!r}; allowed are letters, digits, _ - . and :" if wrong else ""


def kind_version(kind: str) -> str:
    """The version that a kind needs."""
    return DOTTED_CLASS if "." in kind.partition("/")[2] else BASE


def device_version(name: str) -> str:
    """The version that a device's name needs: names could not start with a digit at first."""
    return HOST_PATH if name[:1] in string.digits else BASE


def assignment_problem(text: str) -> str:
    """What is wrong with an environment entry, or ""."""
    return "" if text.partition("=")[1] and not text.startswith("=") else f"{text!r} is not NAME=VALUE"
