"""The share spec: ``mem=10Gi,weight=30,cap=50%,priority=high,oversubscribe=on``.

    spec      = "off" | part *( ";" part )
    part      = [ selector ":" ] setting *( "," setting )     the selector stands before the part's first setting
    setting   = "mem=" amount [ ".." amount ] | "weight=" 1..1000 | "cap=" percentage
              | "priority=" ( "normal" | "low" | "high" | "service" ) | "latency=" NUMBER ( "us" | "ms" )
              | "idle=" NUMBER ( "s" | "m" | "h" ) | "oversubscribe=" ( "on" | "off" ) | "group=" NAME
              | "guard=require"
    amount    = quantity | percentage                         two of them: what is guaranteed, and the most
    selector  = INDEX | "#" POSITION | "GPU-" UUID | "MIG-" UUID | PCI bus id

INDEX counts the GPUs of the host as nvidia-smi on the host does; #POSITION counts those that the container sees.
NAME joins containers to one tenant, and guard=require keeps the container from starting without the guard, whatever
part they stand in; ``nvc.share.sources`` says which sources may use them.
Whole texts come from tenants: every number has a length limit before int() sees it, and every mistake is an InputError
that names its setting. Amounts of memory are read in ``nvc.share.memory``.
"""

from __future__ import annotations

from nvc.base.errors import InputError, shown
from nvc.base.nearest import did_you_mean
from nvc.request.selection import normalize_bus_id
from nvc.share import memory
from nvc.share.memory import decimal, number
from nvc.share.memory import format_memory as format_memory
from nvc.share.model import (
    CAP_WHOLE,
    DEFAULT_WEIGHT,
    LEAST_IDLE_S,
    LEAST_LATENCY_US,
    MOST_IDLE_S,
    MOST_LATENCY_US,
    PRIORITIES,
    WEIGHT_LIMIT,
    GpuShare,
    Share,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

#: Longest text looked at: 64 GPUs by UUID with every setting fit.
TEXT_LIMIT = 8192
#: SHARE_MAX_GPUS of native/shim/share.h.
GPU_LIMIT = 32
OFF = "off"
#: Of guard, as of the node's rule (``nvc.share.policy.GUARDS``).
REQUIRE = "require"
#: Longest name of a group.
GROUP_LENGTH = 63
#: Between the names of a container that is of several groups; no name has it.
JOINT = "+"

_DIGITS = frozenset("0123456789")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_GROUP = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_UUID_LENGTH = 36

_CAP_ALLOWED = "cap takes 1% to 100% of the GPU's time, with at most one decimal: cap=50%"
_WEIGHT_ALLOWED = f"weight takes a whole number from 1 to {WEIGHT_LIMIT}; 10 is what a container has that does not say"
_LATENCY_ALLOWED = f"latency takes {LEAST_LATENCY_US}us to {MOST_LATENCY_US // 1000}ms, to the microsecond: latency=1ms"
_IDLE_ALLOWED = "idle takes a whole number of seconds, minutes or hours: idle=60s"
_GROUP_ALLOWED = f"group takes up to {GROUP_LENGTH} letters, digits, '_', '-' and '.', the first a letter, digit or '_'"
_SELECTOR_ALLOWED = (
    "write a GPU's index on the host (0:mem=10Gi), #N for the container's Nth from 0 (#0:mem=10Gi), its UUID "
    "(GPU-...:mem=10Gi) or PCI bus id"
)
_ONE_SHARE = "a container has one share of a GPU: name the GPU in one hook, by its UUID"
_ALLOWED = (
    "a share is settings with commas between them: mem=10Gi,weight=30,cap=50%,priority=high,oversubscribe=on, or off"
)


def parse(text: str) -> Share:
    """The share that ``text`` says. Raises InputError."""
    if len(text) > TEXT_LIMIT:
        raise InputError(f"share: {len(text)} characters are too many", hint=f"at most {TEXT_LIMIT}")
    if not text.isascii() or not text.isprintable():
        raise InputError(f"share: {shown(text)} has characters that no setting has", hint=_ALLOWED)
    if text.strip(" ") == OFF:
        return Share(off=True)
    default: GpuShare | None = None
    per_gpu: dict[str, GpuShare] = {}
    groups: set[str] = set()
    requires_guard = False
    for part in text.split(";"):
        selector, gpu, group, guard = _part(part.strip(" "))
        groups.update({group} - {""})
        requires_guard = requires_guard or guard
        if gpu == GpuShare():
            continue  # what is not of one GPU
        if not selector:
            if default is not None:
                raise InputError(
                    f"share: {shown(part)} is a second part for all GPUs", hint="put its settings behind commas"
                )
            default = gpu
        elif selector in per_gpu:
            raise InputError(f"share: GPU {selector} is named twice", hint="put its settings behind commas")
        else:
            per_gpu[selector] = gpu
    if len(per_gpu) > GPU_LIMIT:
        raise InputError(f"share: {len(per_gpu)} GPUs are named", hint=f"a share holds at most {GPU_LIMIT}")
    return Share(default, tuple(per_gpu.items()), group=_one(groups), requires_guard=requires_guard)


def merge(texts: Iterable[str]) -> Share:
    """Several specs as one: those of a container's hooks, each of which names its own GPU. Raises InputError.

    Specs of several groups make the container a member of all: its group's name has them all. What two groups say of
    one GPU adds up, because each has an amount of its own; without groups it must be the same.
    """
    shares = [parse(text) for text in dict.fromkeys(texts)]
    if len(shares) > 1 and any(share.off for share in shares):
        raise InputError(
            "share: off stands beside other settings", hint="every hook of the container says off, or none"
        )
    defaults = {share.default for share in shares if share.default is not None}
    found: dict[str, dict[str, GpuShare]] = {}
    for share in shares:
        for selector, gpu in share.per_gpu:
            known = found.setdefault(selector, {})
            if known.setdefault(share.group, gpu) != gpu or (len(known) > 1 and "" in known):
                other = next(one for one in known.values() if one != gpu or len(known) > 1)
                raise InputError(
                    f"share: GPU {selector} has {format_gpu(other)} and {format_gpu(gpu)}", hint=_ONE_SHARE
                )
    groups = sorted({share.group for share in shares} - {""})
    if len(groups) > 1 and defaults:
        raise InputError(
            f"share: groups {' and '.join(groups)} in one container, and not all of their settings name a GPU",
            hint="each group has an amount of its own: name the GPU by its UUID",
        )
    if len(defaults) > 1:
        raise InputError(f"share: all GPUs have {' and '.join(map(format_gpu, defaults))}", hint=_ONE_SHARE)
    off, requires_guard = (any(getattr(share, field) for share in shares) for field in ("off", "requires_guard"))
    per_gpu = tuple((selector, _sum(selector, tuple(by_group.values()))) for selector, by_group in found.items())
    return Share(next(iter(defaults), None), per_gpu, off, JOINT.join(groups), requires_guard)


def have_common(group: str, other: str) -> bool:
    """Whether two groups of containers (``Share.group``, "" for none) have the amount of one name of a group."""
    return not ({*group.split(JOINT)} - {""}).isdisjoint(other.split(JOINT))


def _sum(selector: str, amounts: tuple[GpuShare, ...]) -> GpuShare:
    """What several groups have of one GPU. Raises InputError for amounts that cannot be added."""
    first, *others = amounts
    for more in others:
        same = (first.priority, first.latency, first.idle) == (more.priority, more.latency, more.idle)
        relative = first.request_part or more.request_part
        if not first.memory or not more.memory or relative or not same:
            raise InputError(
                f"share: GPU {selector} has {format_gpu(first)} and {format_gpu(more)}, which do not add up",
                hint="name memory in bytes and the same priority for all groups of a container",
            )
        request = (first.request or first.memory) + (more.request or more.memory)
        first = GpuShare(
            memory=first.memory + more.memory,
            request=request if first.request or more.request else 0,
            cap=min(first.cap + more.cap, CAP_WHOLE) if first.cap and more.cap else 0,
            weight=min((first.weight or DEFAULT_WEIGHT) + (more.weight or DEFAULT_WEIGHT), WEIGHT_LIMIT),
            priority=first.priority,
            oversubscribe=first.oversubscribe and more.oversubscribe,
            latency=first.latency,
            idle=first.idle,
        )
    return first


def _one(groups: set[str]) -> str:
    """The one name of a group, or "". Raises InputError for several."""
    if len(groups) > 1:
        raise InputError(
            f"share: groups {' and '.join(sorted(groups))} in one container", hint="a container is of one group"
        )
    return next(iter(groups), "")


def format_share(share: Share) -> str:
    """The text that ``parse`` reads as ``share``; "" for one that says nothing."""
    if share.off:
        return OFF
    parts = [format_gpu(share.default)] if share.default is not None else []
    parts += [f"group={share.group}"] if share.group else []
    parts += [f"guard={REQUIRE}"] if share.requires_guard else []
    parts += [f"{selector}:{format_gpu(gpu)}" for selector, gpu in share.per_gpu]
    return ";".join(parts)


def parse_gpu(text: str) -> GpuShare:
    """The settings for one GPU, without a selector. Raises InputError."""
    share = parse(text)
    if share.default is None or share.per_gpu or share.off or share.group or share.requires_guard:
        raise InputError(f"share: {shown(text)} is not for one GPU", hint="write settings only: mem=10Gi,weight=30")
    return share.default


def format_gpu(gpu: GpuShare) -> str:
    """The settings for one GPU; "" for a share that sets nothing."""
    settings = []
    if gpu.memory or gpu.memory_part:
        settings.append(f"mem={memory.text(gpu)}")
    if gpu.weight:
        settings.append(f"weight={gpu.weight}")
    if gpu.cap:
        settings.append(f"cap={format_cap(gpu.cap)}")
    if gpu.priority:
        settings.append(f"priority={gpu.priority}")
    if gpu.latency:
        settings.append(f"latency={format_latency(gpu.latency)}")
    if gpu.idle:
        settings.append(f"idle={gpu.idle}s")
    if gpu.oversubscribe is not None:
        settings.append(f"oversubscribe={'on' if gpu.oversubscribe else 'off'}")
    return ",".join(settings)


def format_cap(cap: int) -> str:
    """1/1000 as a percentage."""
    return f"{decimal(cap, 1)}%"


def format_latency(microseconds: int) -> str:
    """Milliseconds with up to three decimals."""
    return f"{decimal(microseconds, 3)}ms"


def _part(text: str) -> tuple[str, GpuShare, str, bool]:
    """(selector or "", settings of the GPU, name of the group or "", whether the guard is required)."""
    # A selector ends at the last colon before the first setting's "=": bus ids have colons of their own.
    head, equals, rest = text.partition("=")
    selector, colon, name = head.rpartition(":")
    if text == OFF:
        raise InputError("share: off stands alone", hint="mem=100%,cap=100% leaves one GPU without limits")
    if not text:
        raise InputError("share: a part is empty", hint=_ALLOWED)
    if not equals:
        raise InputError(f"share: {shown(text)} is not a setting, NAME=VALUE", hint=_ALLOWED)
    found: dict[str, Any] = {}
    for setting in f"{name}={rest}".split(","):
        key, equals, value = setting.strip(" ").partition("=")
        reader = _SETTINGS.get(key)
        if not equals or reader is None:
            near = "mem" if key.lower() in ("memory", "mem") else key  # as claims on Kubernetes have it
            hint = did_you_mean(near, _SETTINGS, otherwise=_ALLOWED, shown="{}=")
            raise InputError(f"share: unknown setting {shown(setting)}", hint=hint)
        if "=" in value:
            raise InputError(f"share: {shown(setting)} is more than one setting", hint=_ALLOWED)
        if key in found:
            raise InputError(f"share: {key} is said twice", hint="say it once")
        found[key] = reader(value)
    found.update(found.pop("mem", {}))
    group, guard = found.pop("group", ""), found.pop("guard", False)
    return _selector(selector) if colon else "", GpuShare(**found), group, guard


def _selector(text: str) -> str:
    """A selector in its one form, so that a GPU named twice in two spellings is seen."""
    text = text.strip(" ")
    position = text[1:] if text[:1] == "#" else text
    if position and _DIGITS.issuperset(position) and len(position) <= 4:
        return f"#{int(position)}" if text[0] == "#" else str(int(position))
    kind, uuid = text[:4].upper(), text[4:].lower()
    if kind in ("GPU-", "MIG-") and len(uuid) == _UUID_LENGTH and _HEXADECIMAL.issuperset(uuid.replace("-", "")):
        return kind + uuid
    bus_id = normalize_bus_id(text) if len(text) <= 20 else ""
    if not bus_id:
        raise InputError(f"share: {shown(text)} names no GPU", hint=_SELECTOR_ALLOWED)
    return bus_id


def _cap(value: str) -> int:
    cap = number(value[:-1], CAP_WHOLE // 100) if value.endswith("%") else None
    if cap is None or not 10 <= cap <= CAP_WHOLE or len(value.partition(".")[2]) > 2:
        raise InputError(f"share: cap={shown(value)} is not a percentage from 1% to 100%", hint=_CAP_ALLOWED)
    return cap


def _weight(value: str) -> int:
    weight = int(value) if value and len(value) <= 4 and _DIGITS.issuperset(value) else 0
    if not 1 <= weight <= WEIGHT_LIMIT:
        raise InputError(f"share: weight={shown(value)} is not from 1 to {WEIGHT_LIMIT}", hint=_WEIGHT_ALLOWED)
    return weight


def _priority(value: str) -> str:
    if value not in PRIORITIES:
        hint = did_you_mean(value, PRIORITIES, otherwise=f"priority takes {', '.join(PRIORITIES)}")
        raise InputError(f"share: priority={shown(value)} is unknown", hint=hint)
    return value


def _latency(value: str) -> int:
    unit = {"us": 1, "ms": 1000}.get(value[-2:])
    latency = number(value[:-2], unit) if unit is not None else None
    if latency is None or len(value.partition(".")[2]) > (5 if unit == 1000 else 0):
        raise InputError(f"share: latency={shown(value)} is not a time", hint=_LATENCY_ALLOWED)
    if not LEAST_LATENCY_US <= latency <= MOST_LATENCY_US:
        problem = (
            "less than the shortest slice and a switch" if latency < LEAST_LATENCY_US else "no latency of a service"
        )
        raise InputError(f"share: latency={shown(value)} is {problem}", hint=_LATENCY_ALLOWED)
    return latency


def _idle(value: str) -> int:
    unit = {"s": 1, "m": 60, "h": 3600}.get(value[-1:])
    idle = number(value[:-1], unit) if unit is not None and value[:-1].isdigit() else None
    if idle is None or not LEAST_IDLE_S <= idle <= MOST_IDLE_S:
        raise InputError(f"share: idle={shown(value)} is not a time from 1s to 24h", hint=_IDLE_ALLOWED)
    return idle


def _oversubscribe(value: str) -> bool:
    if value not in ("on", "off"):
        raise InputError(f"share: oversubscribe={shown(value)} is unknown", hint="oversubscribe takes on or off")
    return value == "on"


def _group(value: str) -> str:
    if not 0 < len(value) <= GROUP_LENGTH or not _GROUP.issuperset(value) or value[0] in "-.":
        raise InputError(f"share: group={shown(value)} is no name of a group", hint=_GROUP_ALLOWED)
    return value


def _guard(value: str) -> bool:
    if value != REQUIRE:
        raise InputError(f"share: guard={shown(value)} is unknown", hint=f"guard takes {REQUIRE}")
    return True


_SETTINGS: dict[str, Callable[[str], Any]] = {
    "mem": memory.parse,
    "weight": _weight,
    "cap": _cap,
    "priority": _priority,
    "latency": _latency,
    "idle": _idle,
    "oversubscribe": _oversubscribe,
    "group": _group,
    "guard": _guard,
}
