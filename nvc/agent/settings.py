"""The agent's settings: section [agent] of /etc/nvc/config.toml (table: docs/reference/configuration-shares.md)."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.guard.scheduling import PERIOD_US, parse_policy
from nvc.guard.supervisors import USER_COUNT, USERS
from nvc.share import policyfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SECTION = "agent"
#: Beside a log event, a metric and a line in top: nothing; no container is admitted to the GPU; the container that is
#: known to have it is paused.
ACTIONS = WARN, STOP_ADMISSION, FREEZE = "warn", "stop-admission", "freeze"
_PERIOD_MS = (10, 200)
_SLOTS = (1, 1000)
#: Behind those of Debian's and systemd's conventions (1 to 65535); the last uid is -2 (setresuid(2): -1).
_FIRST_UID = (1 << 16, (1 << 32) - 2 - USER_COUNT)


class AgentSettings(Record):
    """directory: of its sockets; nvc-runtime looks there too. policy: of GPUs, a name of nvc.guard.scheduling.POLICIES.

    slots: how many tenants policy "fair" divides among.
    period_us: of a cap's on and off. metrics: ADDRESS:PORT for Prometheus, "" for none; metrics_hami: under HAMi's
    names too. group: of people who may read the control socket. unaccounted: what is done about memory that is in use
    and not accounted for (nvc.agent.probing). first_uid: of supervisors; the prober's is behind them (nvc.agent.users).
    graphics: whether the guard lets containers that start from now on make objects of graphics, in whose contexts a
    kernel stops between blocks only.
    """

    directory: str = "/run/nvc/agent"
    policy: str = "weighted"
    slots: int = 16
    period_us: int = PERIOD_US
    metrics: str = ""
    metrics_hami: bool = False
    group: str = "nvc"
    unaccounted: str = WARN
    first_uid: int = USERS
    graphics: bool = False


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
        elif key == "first-uid":
            _bounded(value, label, *_FIRST_UID)
        elif key == "unaccounted" and value not in ACTIONS:
            raise InputError(f"{label}: {value[:40]!r} is none of {', '.join(ACTIONS)}")
        values[key.replace("-", "_")] = value
    return AgentSettings(**values)


def _bounded(value: int, label: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{label} is not a number from {least} to {most}")
