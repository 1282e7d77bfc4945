"""Where config.toml is, and the one of its keys that a container without NVIDIA_VISIBLE_DEVICES has to be asked about.

``swarm-resource`` names variables that ask for GPUs in its place (Docker Swarm's DOCKER_RESOURCE_GPU). Every container
passes here, so the file is searched for the word, not parsed; ``hook.request`` decides with the parsed file.
"""

from __future__ import annotations

import os

from hook import files
from hook.environment import visible_devices
from nvc.base.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Below /etc or $XDG_CONFIG_HOME, in this order: a node that has the toolkit's file needs no other.
FILES = ("nvc/config.toml", "nvidia-container-runtime/config.toml")
CONFIG_LIMIT = 1 << 20
_KEY = b"swarm-resource"
#: In the environment of a hook entry that nvc-runtime made: the mode that it decided for, and the devices to give in
#: place of what the container asks for (a comma list).
MODE, DEVICES = "NVC_MODE", "NVC_DEVICES"


def find(path: str, environment: Mapping[str, str]) -> str:
    """The file to read: ``path``, the one that the environment names, or the first usual one; "" without any."""
    name = path or environment.get("NVIDIA_CTK_CONFIG_FILE_PATH", "")
    if name:
        return name
    directory = environment.get("XDG_CONFIG_HOME", "")
    for file in FILES:
        name = f"{directory if directory.startswith('/') else '/etc'}/{file}"
        if os.path.lexists(name):
            return name
    return ""


def own(path: str, environment: Mapping[str, str]) -> str:
    """What ``find`` finds where that is nvc-py's file, which alone has the sections [share] and [agent]; else ""."""
    name = find(path, environment)
    return name if name.endswith(f"/{FILES[0]}") else ""


def asked(env: Mapping[str, str], device_mounts: tuple[str, ...], path: str, environment: Mapping[str, str]) -> bool:
    """Whether a container may ask for GPUs at all: by environment, by mounts, or through a swarm resource.

    environment: this program's, where nvc-runtime may have asked in its place.
    """
    if visible_devices(env) is not None or device_mounts or environment.get(DEVICES):
        return True
    return may_ask(env, path, environment)


def may_ask(env: Mapping[str, str], path: str, environment: Mapping[str, str]) -> bool:
    """Whether the container's ``env`` may ask for GPUs through a swarm resource. path: of --config, or "".

    A file that cannot be read names none: what is wrong with it is said to the containers that ask for a GPU.
    """
    name = find(path, environment)
    if not name:
        return False
    try:
        data = files.read(name, CONFIG_LIMIT)
    except InputError:
        return False
    if _KEY not in data:
        return False
    return any(_KEY in line and _named(line, env) for line in data.split(b"\n") if not line.lstrip().startswith(b"#"))


def _named(line: bytes, env: Mapping[str, str]) -> bool:
    """Whether the variables in ``swarm-resource = "A,B"`` are set; True for a line of any other form."""
    key, _, value = line.decode("utf-8", "surrogateescape").partition("=")
    parts = value.split('"')
    if key.strip() != "swarm-resource" or len(parts) != 3 or "\\" in value:
        return True
    return any(word.strip() in env for word in parts[1].split(","))
