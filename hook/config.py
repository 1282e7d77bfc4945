"""Which config.toml counts for hook and runtime: nvc-py's own, or the container toolkit's as it is.

Read only for a container that asked for a GPU (``hook.swarm`` knows the one exception), and by nvc-runtime.
"""

from __future__ import annotations

from hook.swarm import find
from nvc.base import config_file
from nvc.base.errors import InputError
from nvc.request.hook_config import MODES, HookConfig, decode, usable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MODES", "HookConfig", "decode", "load", "rescue"]

#: How our own file's path ends, in /etc or $XDG_CONFIG_HOME.
_OURS = "/nvc/config.toml"


def load(path: str, environment: Mapping[str, str]) -> HookConfig:
    """The settings in ``path``; with "" in the file that ``find`` finds, or the defaults.

    Raises InputError for a file that was named and does not exist, cannot be read, or does not make sense.
    """
    name = find(path, environment)
    if not name:
        return HookConfig()
    try:
        data = config_file.read(name)
    except FileNotFoundError:
        raise config_file.missing(name) from None
    return decode(data, name, lenient=_is_toolkits(name, path))


def rescue(path: str, environment: Mapping[str, str]) -> HookConfig:
    """What can be used of a file that ``load`` refuses: no mistake in it may keep a container from being stopped."""
    try:
        return usable(config_file.rescued(config_file.read(find(path, environment))))
    except (InputError, OSError):
        return HookConfig()


def _is_toolkits(name: str, path: str) -> bool:
    """The toolkit's variable names a file of the toolkit's, wherever it is."""
    return config_file.is_toolkits(name) or (not path and not name.endswith(_OURS))
