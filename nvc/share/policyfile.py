"""The node's rules from /etc/nvc/config.toml: section [share]; what they mean is ``nvc.share.policy``."""

from __future__ import annotations

import os

from nvc.errors import InputError, reason
from nvc.formats import toml_subset
from nvc.share.policy import SECTION, Policy, decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONFIG = "/etc/nvc/config.toml"
#: Where the agent is, unless the file's section [agent] says otherwise.
AGENT = "/run/nvc/agent"
SIZE_LIMIT = 1 << 20


def load(path: str = "") -> Policy:
    """The rules in the file at ``path``, or in the usual one, which need not exist.

    Raises InputError for a file that cannot be read or does not make sense: no rule may be lost by a typing mistake.
    """
    return decode(read(path).get(SECTION, {}), path or CONFIG)


def load_node(path: str = "") -> tuple[Policy, str]:
    """The rules, and the agent's directory, of the file that ``load`` reads. Raises InputError."""
    content, name = read(path), path or CONFIG
    table = content.get("agent", {})
    directory = table.get("directory", AGENT) if isinstance(table, dict) else None
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise InputError(f"{name}: agent.directory is not an absolute path")
    return decode(content.get(SECTION, {}), name), directory


def read(path: str = "") -> dict[str, Any]:
    """All tables of that file; none when the usual one does not exist. Raises InputError."""
    name = path or CONFIG
    try:
        # O_NONBLOCK: a FIFO in its place has no writer to wait for.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        if path:
            raise InputError(f"{name}: no such file or directory") from None
        return {}
    except OSError as error:
        raise InputError(f"{name}: {reason(error)}", hint="it has this node's rules for shares") from None
    try:
        data = _all(descriptor)
    except OSError as error:
        raise InputError(f"{name}: {reason(error)}") from None
    finally:
        os.close(descriptor)
    if len(data) > SIZE_LIMIT:
        raise InputError(f"{name}: larger than {SIZE_LIMIT >> 20} MiB")
    return tables(data, name)


def parse(data: bytes, name: str) -> Policy:
    """The rules in the text of a configuration file called ``name``. Raises InputError."""
    return decode(tables(data, name).get(SECTION, {}), name)


def tables(data: bytes, name: str) -> dict[str, Any]:
    """The text of a configuration file called ``name``. Raises InputError."""
    try:
        text = data.decode("utf-8")
        content: dict[str, Any] | None = toml_subset.loads(text)
        if content is None:
            import tomllib

            content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}: not TOML: {error}") from None
    return content


def _all(descriptor: int) -> bytes:
    chunks = []
    size = 0
    while size <= SIZE_LIMIT and (chunk := os.read(descriptor, SIZE_LIMIT + 1 - size)):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)
