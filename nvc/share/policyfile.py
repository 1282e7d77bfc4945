"""The node's rules from /etc/nvc/config.toml: section [share]; what they mean is ``nvc.share.policy``."""

from __future__ import annotations

from nvc.base import config_file
from nvc.base.errors import InputError
from nvc.share.policy import SECTION, Policy, decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG = config_file.CONFIG
#: Where the agent is, unless the file's section [agent] says otherwise.
AGENT = "/run/nvc/agent"


def load(path: str = "") -> Policy:
    """The rules in the file at ``path``, or in the usual one, which need not exist.

    The container toolkit's file has none: where that is named, the usual one counts. Raises InputError for a file that
    cannot be read or does not make sense: no rule may be lost by a typing mistake.
    """
    path = "" if config_file.is_toolkits(path) else path
    return decode(read(path).get(SECTION, {}), path or CONFIG)


def load_node(path: str = "") -> tuple[Policy, str]:
    """The rules, and the agent's directory, of the file that ``load`` reads. Raises InputError."""
    path = "" if config_file.is_toolkits(path) else path
    content, name = read(path), path or CONFIG
    table = content.get("agent", {})
    directory = table.get("directory", AGENT) if isinstance(table, dict) else None
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise InputError(f"{name}: agent.directory is not an absolute path")
    return decode(content.get(SECTION, {}), name), directory


def read(path: str = "") -> dict[str, Any]:
    """All tables of that file; none when the usual one does not exist. Raises InputError."""
    return config_file.load(path or CONFIG, must_exist=bool(path))


def parse(data: bytes, name: str) -> Policy:
    """The rules in the text of a configuration file called ``name``. Raises InputError."""
    return decode(config_file.tables(data, name)[0].get(SECTION, {}), name)
