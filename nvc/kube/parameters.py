"""Opaque parameters of a claim or a device class: how an allocated share is held. Pure.

Amounts never come from here: memory and compute are what the scheduler allocated. A class is the administrator's, so
a claim that uses it can only tighten what its parameters say. What would take from neighbours what their claims
reserved (priority: high) is in no claim at all.

    {apiVersion: nvc.dev/v1, kind: Share, cap: reservation | none | "50%", priority: low | normal | high,
     oversubscribe: off | on, guard: require}

The guard holds every share of a claim. guard: require puts a whole GPU under it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvc.base.errors import InputError, shown
from nvc.base.record import Record
from nvc.kube.names import DRIVER, PARAMETERS_KIND, PARAMETERS_VERSION
from nvc.share.model import CAP_WHOLE, PRIORITIES, RANK, SERVICE
from nvc.share.spec import REQUIRE, parse_gpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

#: cap: the percentage that is reserved.
RESERVATION = "reservation"
_NONE = "none"
#: A service is put before all others on its GPU, which neither says.
_PRIORITIES = tuple(word for word in PRIORITIES if word != SERVICE)
#: Those that a claim says itself: beside a higher one, other claims lose what their compute reserves.
_OWN_PRIORITIES = tuple(word for word in _PRIORITIES if RANK[word] <= RANK["normal"])
_KEYS = ("cap", "priority", "oversubscribe", "guard")


class Parameters(Record):
    """cap: in 1/1000, CAP_WHOLE for none. is_reserved: no more than the reservation, whatever that is.

    priority: normal, low or high. requires_guard: also for a whole GPU.
    """

    cap: int = CAP_WHOLE
    is_reserved: bool = False
    priority: str = "normal"
    oversubscribe: bool = False
    requires_guard: bool = False


def decode(data: object, of: str, usual: Parameters | None = None) -> Parameters:
    """The parameters in ``data``. of: the class or claim, for messages. usual: what holds for those that are not said.

    Raises InputError.
    """
    usual = usual or Parameters()
    if not isinstance(data, dict):
        raise InputError(f"{of}: parameters are no object", hint=_allowed())
    kind = data.get("apiVersion"), data.get("kind")
    if kind != (PARAMETERS_VERSION, PARAMETERS_KIND):
        raise InputError(
            f"{of}: parameters of apiVersion {shown(str(kind[0]))}, kind {shown(str(kind[1]))} are not known",
            hint=f"write apiVersion: {PARAMETERS_VERSION}, kind: {PARAMETERS_KIND}",
        )
    unknown = sorted(str(key) for key in data.keys() - {"apiVersion", "kind", *_KEYS})
    if unknown:
        raise InputError(f"{of}: parameter {shown(unknown[0])} is not known", hint=_allowed())
    found = usual
    if "cap" in data:
        found = found.replace(cap=_cap(data["cap"], of), is_reserved=data["cap"] == RESERVATION)
    if "priority" in data:
        found = found.replace(priority=_word(data, "priority", _PRIORITIES, of))
    if "oversubscribe" in data:
        # off and on are no texts to YAML 1.1.
        said = _word(data, "oversubscribe", ("off", "on", False, True), of)
        found = found.replace(oversubscribe=said in ("on", True))
    if "guard" in data:
        found = found.replace(requires_guard=_word(data, "guard", (REQUIRE,), of) == REQUIRE)
    return found


def tightest(found: Iterable[Parameters]) -> Parameters:
    """The parameters that keep within all of them."""
    rest = list(found)
    if not rest:
        return Parameters()
    return Parameters(
        cap=min(one.cap for one in rest),
        is_reserved=any(one.is_reserved for one in rest),
        priority=min((one.priority for one in rest), key=lambda word: RANK[word]),
        oversubscribe=all(one.oversubscribe for one in rest),
        requires_guard=any(one.requires_guard for one in rest),
    )


def of_request(config: Iterable[Mapping[str, Any]], request: str, of: str) -> Parameters:
    """What holds for one request of a claim. Raises InputError.

    config: ``status.allocation.devices.config``. request: as in a result; of alternatives, REQUEST/ALTERNATIVE.
    Of one source the last entry counts; between class and claim the tighter setting. Every entry is checked.
    """
    by_source: dict[str, object] = {}
    for entry in config:
        opaque = entry.get("opaque")
        if not isinstance(opaque, dict) or opaque.get("driver") != DRIVER:
            continue
        named = entry.get("requests") or ()
        if not named or request in named or request.partition("/")[0] in named:
            # The scheduler writes it. What has another source is taken for the user's.
            source = "class" if entry.get("source") == "FromClass" else "claim"
            parameters = opaque.get("parameters")
            priority = decode(parameters, f"{of}: config of the {source}").priority
            if source == "claim" and priority not in _OWN_PRIORITIES:
                raise InputError(
                    f"{of}: config of the claim: priority {priority} is a device class's to give: "
                    "other claims of the GPU would not get what their compute reserves",
                    hint=f"leave it out, or name a DeviceClass whose parameters say priority: {priority}",
                )
            by_source[source] = parameters
    of_class = decode(by_source["class"], of) if "class" in by_source else None
    # What a claim does not say is its class's, not the usual: that could be tighter, or looser.
    own = (decode(by_source["claim"], of, of_class),) if "claim" in by_source else ()
    return tightest((*own, of_class) if of_class is not None else own)


def _cap(value: object, of: str) -> int:
    if value in (_NONE, RESERVATION):
        return CAP_WHOLE
    if not isinstance(value, str) or not value.endswith("%") or "," in value:
        raise InputError(f"{of}: cap {shown(str(value))} is not known", hint=_allowed())
    try:
        return parse_gpu(f"cap={value}").cap
    except InputError as error:
        raise InputError(f"{of}: {error.message}", hint=_allowed()) from None


def _word(data: Mapping[str, Any], key: str, known: tuple[object, ...], of: str) -> Any:
    value = data[key]
    # 0 and 1 are equal to False and True.
    if not any(value == one and type(value) is type(one) for one in known):
        raise InputError(f"{of}: {key} {shown(str(value))} is not known", hint=_allowed())
    return value


def _allowed() -> str:
    return (
        f'cap is {RESERVATION}, {_NONE} or a percentage ("50%"), priority one of {", ".join(_PRIORITIES)} '
        f"(of a claim: {', '.join(_OWN_PRIORITIES)}), "
        f"oversubscribe off or on, guard {REQUIRE}"
    )
