"""The agent's settings: section [agent] of /etc/nvc/config.toml (docs/user/agent.md has the table)."""

from __future__ import annotations

from nvc.errors import InputError
from nvc.guard.schedule import PERIOD_US, parse_policy
from nvc.record import Record
from nvc.share import policyfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECTION = "agent"
_PERIOD_MS = (10, 200)
_SLOTS = (1, 1000)


class AgentSettings(Record):
    """directory: of its sockets; nvc-runtime looks there too. policy: of GPUs, a name of nvc.guard.schedule.POLICIES.

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


def decode(table: object, name: str) -> AgentSettings:
    """The settings in section [agent] of the file ``name``. Raises InputError that names the key."""
    if not isinstance(table, dict):
        raise InputError(f"{name}: {SECTION} is not a table")
    values: dict[str, Any] = {}
    for key, value in table.items():
        label = f"{name}: {SECTION}.{key}"
        if key in ("metrics", "group", "directory"):
            if not isinstance(value, str):
                raise InputError(f"{label} is not a string")
            if key == "directory" and not value.startswith("/"):
                raise InputError(f"{label} is not an absolute path")
            values[key] = value
        elif key in ("metrics-hami", "metrics_hami"):
            if not isinstance(value, bool):
                raise InputError(f"{label} is not a boolean")
            values["metrics_hami"] = value
        elif key == "policy":
            try:
                values[key] = parse_policy(str(value))
            except InputError as error:
                raise InputError(f"{label}: {error.message}", hint=error.hint) from None
        elif key == "slots":
            values[key] = _number(value, label, *_SLOTS)
        elif key == "period":
            values["period_us"] = 1000 * _number(value, label, *_PERIOD_MS)
        else:
            raise InputError(
                f"{label} is unknown", hint="there are directory, policy, slots, period, metrics, metrics-hami, group"
            )
    return AgentSettings(**values)


def _number(value: object, label: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"{label} is not a number from {least} to {most}")
    return value
