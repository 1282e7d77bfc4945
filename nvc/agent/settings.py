"""The agent's settings: section [agent] of /etc/nvc/config.toml (docs/user/agent.md has the table)."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.guard.scheduling import PERIOD_US, parse_policy
from nvc.share import policyfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SECTION = "agent"
_PERIOD_MS = (10, 200)
_SLOTS = (1, 1000)


class AgentSettings(Record):
    """directory: of its sockets; nvc-runtime looks there too. policy: of GPUs, a name of nvc.guard.scheduling.POLICIES.

    slots: how many tenants policy "fair" divides among.
    period_us: of a cap's on and off. metrics: ADDRESS:PORT for Prometheus, "" for none; metrics_hami: under HAMi's
    names too. group: of people who may read the control socket.
    """

    directory: str = "/run/nvc/agent"
    policy: str = "weighted"
    slots: int = 16
    period_us: int = PERIOD_US
    metrics: str = ""
    metrics_hami: bool = False
    group: str = "nvc"


def load(path: str = "") -> AgentSettings:
    """From the file at ``path``, or the usual one, which need not exist. Raises InputError that names the key."""
    name = path or policyfile.CONFIG
    return decode(policyfile.read(path).get(SECTION, {}), name)


def decode(table: Mapping[str, Any], name: str) -> AgentSettings:
    """The settings in section [agent] of the file ``name``; ``nvc.base.config_file`` has checked keys and types.

    Raises InputError that names the key.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        label = f"{name}: {SECTION}.{key}"
        if key == "directory" and not value.startswith("/"):
            raise InputError(f"{label} is not an absolute path")
        if key == "policy":
            try:
                value = parse_policy(str(value))
            except InputError as error:
                raise InputError(f"{label}: {error.message}", hint=error.hint) from None
        elif key == "slots":
            _bounded(value, label, *_SLOTS)
        elif key == "period":
            _bounded(value, label, *_PERIOD_MS)
            key, value = "period_us", 1000 * value
        values[key.replace("-", "_")] = value
    return AgentSettings(**values)


def _bounded(value: int, label: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{label} is not a number from {least} to {most}")
