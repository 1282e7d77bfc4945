"""From a claim, as the API server has it, to what the scheduler allocated of this node. Pure.

Everything here is checked: a claim's status is the scheduler's, its configuration the user's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.kube import parameters, quantity
from nvc.kube.names import COMPUTE, DRIVER, MEMORY
from nvc.kube.parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
#: Of one claim (resource.k8s.io).
_RESULTS_LIMIT = 32


class Result(Record):
    """An allocation result. number: its place in the claim, among all drivers' results.

    request: of the claim. device: its name in the slice. share_id: of this allocation, "" for a device that is not
    shared. memory, compute: what it consumes; None: the device was allocated as a whole.
    """

    number: int
    request: str
    device: str
    share_id: str = ""
    memory: int | None = None
    compute: int | None = None
    parameters: Parameters = Parameters()

    @property
    def main_request(self) -> str:
        """The name that containers use for it."""
        return self.request.partition("/")[0]


class Claim(Record):
    """A claim with what was allocated to it of this node's pool."""

    uid: str
    namespace: str
    name: str
    results: tuple[Result, ...]

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


def check_uid(uid: str) -> str:
    """The uid, which names files. Raises InputError."""
    if not _UID.match(uid):
        raise InputError(f"prepare: {uid!r:.80} is no uid of a claim")
    return uid


def decode(data: Mapping[str, Any], uid: str, pool: str) -> Claim:
    """uid: what the kubelet asked for. pool: of this node. Raises InputError."""
    metadata, status = _table(data.get("metadata")), _table(data.get("status"))
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    of = f"prepare: claim {namespace}/{name}"
    if metadata.get("uid") != uid:
        raise InputError(
            f"{of}: its uid is {metadata.get('uid')}, and {uid} was asked for",
            hint="the claim was deleted and made anew: the pod of the old one ends, and the kubelet asks again",
        )
    devices = _table(_table(status.get("allocation")).get("devices"))
    if not devices:
        raise InputError(f"{of}: nothing is allocated to it", hint="the scheduler allocates; see the pod's events")
    config = [one for one in devices.get("config") or () if isinstance(one, dict)]
    found = []
    rows = devices.get("results") or ()
    if not isinstance(rows, list) or len(rows) > _RESULTS_LIMIT:
        raise InputError(f"{of}: its results are no list of at most {_RESULTS_LIMIT}")
    for number, row in enumerate(rows):
        row = _table(row)
        if row.get("driver") != DRIVER:
            continue
        if row.get("pool") != pool:
            raise InputError(f"{of}: {row.get('device')} is of pool {row.get('pool')}, and this is {pool}")
        if row.get("adminAccess"):
            raise InputError(
                f"{of}: adminAccess is not for GPUs of {DRIVER}", hint="leave adminAccess out of the claim's request"
            )
        request = str(row.get("request", ""))
        found.append(
            Result(
                number,
                request,
                str(row.get("device", "")),
                str(row.get("shareID") or ""),
                *_consumed(row, of),
                parameters.of_request(config, request, of),
            )
        )
    if not found:
        raise InputError(f"{of}: nothing of {DRIVER} is allocated to it")
    return Claim(uid, namespace, name, tuple(found))


def _consumed(row: Mapping[str, Any], of: str) -> tuple[int | None, int | None]:
    """memory, compute. Raises InputError."""
    consumed = row.get("consumedCapacity")
    if not consumed:
        return None, None
    table = _table(consumed)
    try:
        amounts = {str(name).rpartition("/")[2]: quantity.parse(value) for name, value in table.items()}
    except InputError as error:
        raise InputError(f"{of}: consumedCapacity: {error.message}") from None
    if set(amounts) != {MEMORY, COMPUTE}:
        raise InputError(f"{of}: consumedCapacity has {', '.join(sorted(amounts))}, not {MEMORY} and {COMPUTE}")
    return amounts[MEMORY], amounts[COMPUTE]


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
