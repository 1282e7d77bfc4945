"""What a container gets of what was requested for it (``nvc.share.sources``): the node's rules applied. Pure.

A setting that the source leaves out is the default's; what the default leaves out is the whole GPU, as far as the
maximum goes.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.share import maximum, services
from nvc.share.dialects import filled
from nvc.share.memory import most_of, request_of, request_within
from nvc.share.model import (
    CAP_WHOLE,
    DEFAULT_WEIGHT,
    RANK,
    SERVICE,
    WHOLE_MEMORY,
    GpuShare,
    Resolved,
    ResolvedGpu,
    Share,
)
from nvc.share.sources import DEFAULT
from nvc.share.spec import OFF, REQUIRE, format_gpu, format_memory, format_share, parse_gpu
from nvc.share.tightest import by_gpu, said_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nvc.model import Gpu
    from nvc.share.dialects import RequestedShare

#: Section of the node's configuration file.
SECTION = "share"
#: Below this a CUDA context leaves little or nothing for the program: it takes about 515 MiB on an H200 itself.
SENSIBLE_MEMORY = 600 << 20
#: The first architecture whose managed memory moves while programs use it (CUDA's concurrent managed access).
PASCAL = 6
GUARDS = ("auto", REQUIRE, "off")
MEMORY_ONLY = "memory-only"
#: Of which shares the requests never exceed a GPU: of those beside a range, or of all (``nvc.share.admission``).
ADMISSIONS = RANGES, REQUESTS = "ranges", "requests"
UNKNOWN_DRIVERS = ("refuse", MEMORY_ONLY)


class Policy(Record):
    """The node's rules (section [share] of /etc/nvc/config.toml).

    default: what a GPU container gets that does not say. maximum: no container gets more. clamp: asking for more is
    cut with a warning instead of refused. allow_off: a container may have no share at all, in spite of a default.
    variables: whether a container's environment may ask. guard: one of GUARDS: whether containers with a share are put
    under the agent's guard when it runs, always (none starts without it), or never. allow_guard_off: whether a
    container's annotation nvc.guard=off keeps it out. unknown_driver: one of UNKNOWN_DRIVERS: what becomes of settings
    that only a driver with tables in rm lets us hold (``nvc.share.abi``). admission: one of ADMISSIONS.
    """

    default: GpuShare = GpuShare()
    maximum: GpuShare = GpuShare()
    clamp: bool = False
    allow_off: bool = False
    variables: bool = True
    guard: str = "auto"
    allow_guard_off: bool = False
    unknown_driver: str = UNKNOWN_DRIVERS[0]
    admission: str = RANGES

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing for a container that does not ask."""
        return self.default == GpuShare() and self.maximum == GpuShare() and self.admission != REQUESTS


def decode(table: Mapping[str, Any], name: str) -> Policy:
    """The policy in section [share] of the configuration file ``name``; ``nvc.base.config_file`` has checked keys
    and types.

    Raises InputError that names the key.
    """
    values: dict[str, Any] = {}
    for written, value in table.items():
        key = written.replace("_", "-")
        label = f"{name}: {SECTION}.{written}"
        if key in _RULES:
            value = _rule(value, label)
        elif key in _WORDS and value not in _WORDS[key]:
            raise InputError(f"{label} is none of {', '.join(_WORDS[key])}")
        values[key.replace("-", "_")] = value
    policy = Policy(**values)
    if policy.allow_off and policy.admission == REQUESTS:
        raise InputError(
            f'{name}: {SECTION}.allow-off cannot be true with admission = "{REQUESTS}"',
            hint="a container without a share may take what others were promised",
        )
    return policy


_RULES = ("default", "maximum")
_WORDS = {"guard": GUARDS, "unknown-driver": UNKNOWN_DRIVERS, "admission": ADMISSIONS}


def _rule(text: str, label: str) -> GpuShare:
    if text.strip(" ") in ("", OFF):
        return GpuShare()
    try:
        rule = parse_gpu(text)
        services.latency(rule.priority or "normal", rule.latency, 0, "share", said=rule.latency)
        return rule
    except InputError as error:
        raise InputError(f"{label}: {error.message}", hint=error.hint) from None


def decide(policy: Policy, gpus: Sequence[Gpu], requested: RequestedShare | None, *, has_mig: bool = False) -> Resolved:
    """What a container with these GPUs gets. A result that is false means: no share, inject nothing.

    gpus: those it gets, in its order. requested: by its first source, None without one. has_mig: it gets MIG devices,
    or the right to configure or watch them: a share cannot be asked for beside them. The node's rules leave GPUs with
    MIG devices alone and hold for whole GPUs beside them.

    Raises InputError when the request names a GPU that the container does not get, or is above the maximum.
    """
    asked = requested is not None
    whole = tuple(gpu for gpu in gpus if not gpu.mig_devices)
    if requested is not None and (has_mig or len(whole) < len(gpus)) and not requested.share.off:
        raise InputError(
            f"{requested.source}: a MIG device cannot be shared",
            hint="a MIG device is a share of its own, held by the GPU; ask for a smaller one, or for whole GPUs",
        )
    if not whole:
        return Resolved()
    warnings = list(requested.warnings) if requested is not None else []
    if requested is not None and requested.share.off:
        if policy.is_empty or policy.allow_off:
            return Resolved(source=requested.source, warnings=tuple(warnings), text=OFF)
        if not policy.clamp:
            raise InputError(
                f"{requested.source}: off is not allowed on this node", hint=f"the default is {_said(policy)}"
            )
        warnings.append(f"{requested.source}: off is not allowed on this node; the default holds")
        requested = None
    per_gpu = by_gpu(requested, whole, policy.default, warnings) if requested is not None else [GpuShare()] * len(whole)
    source = requested.source if requested is not None else DEFAULT
    resolved = tuple(_resolve(policy, gpu, said, source, warnings) for gpu, said in zip(whole, per_gpu, strict=True))
    if not asked and policy.admission != REQUESTS and all(_is_whole(gpu) for gpu in resolved):
        return Resolved()
    group, requires_guard = (requested.share.group, requested.share.requires_guard) if requested else ("", False)
    return Resolved(resolved, source, tuple(dict.fromkeys(warnings)), text(resolved), group, requires_guard)


def guarded(policy: Policy, resolved: Resolved) -> Policy:
    """The rules for a container with this share: fixed settings may require the guard where the node does not."""
    return policy.replace(guard=REQUIRE) if resolved.requires_guard else policy


def origins(
    policy: Policy, gpus: Sequence[Gpu], requested: RequestedShare | None, granted: Sequence[ResolvedGpu]
) -> list[dict[str, str]]:
    """Where each setting of each granted GPU comes from: a source, "default", "maximum", or "" for the usual value.

    gpus, requested: as for ``decide``. "cut": something was said, and less is granted for another reason.
    """
    whole = [gpu for one in granted for gpu in gpus if gpu.uuid == one.uuid]
    every = (requested, *requested.also) if requested is not None and not requested.share.off else ()
    said = [(one.source, said_by(one, whole, [])) for one in every]
    rules = []
    for place, (gpu, got) in enumerate(zip(whole, granted, strict=True)):
        has, usual = (_values(as_gpu_share(one), gpu) for one in (got, ResolvedGpu(gpu.uuid, gpu.minor)))
        users = [(name, _values(shares[place], gpu)) for name, shares in said]
        default = _values(policy.default, gpu)
        most = _values(policy.maximum, gpu)
        found = {}
        for setting, value in has.items():
            asked = [(name, level[setting]) for name, level in users if level[setting] is not None]
            asked = asked or [(DEFAULT, default[setting])] * (default[setting] is not None)
            exact = next((name for name, wanted in asked if wanted == value), "")
            if exact:
                found[setting] = exact
            elif most[setting] == value and value != usual[setting]:
                found[setting] = "maximum"
            else:
                found[setting] = "cut" if asked else ""
        rules.append(found)
    return rules


def _values(share: GpuShare, gpu: Gpu) -> dict[str, object]:
    """The settings that it says, comparable, None for the others. mem: (bytes, 0: all of the GPU's; request)."""
    name = f"GPU {gpu.index}"
    memory = most_of(share, gpu.memory, name), request_of(share, gpu.memory, name)
    return {
        "mem": memory if share.memory or share.memory_part else None,
        "cap": share.cap or None,
        "weight": share.weight or None,
        "priority": share.priority or None,
        "latency": share.latency or None,
        "idle": share.idle or None,
        "oversubscribe": share.oversubscribe,
    }


def text(gpus: Sequence[ResolvedGpu]) -> str:
    """What was granted, as a share spec: settings once where all GPUs have the same."""
    shares = [as_gpu_share(gpu) for gpu in gpus]
    if len(set(shares)) == 1:
        return format_share(Share(shares[0]))
    return format_share(Share(None, tuple((gpu.uuid, share) for gpu, share in zip(gpus, shares, strict=True))))


def as_gpu_share(gpu: ResolvedGpu) -> GpuShare:
    """What was granted of a GPU, as a share spec can say it."""
    return GpuShare(
        memory=gpu.most or gpu.memory,
        memory_part=0 if gpu.memory else WHOLE_MEMORY,
        request=gpu.request,
        cap=gpu.cap,
        weight=gpu.weight,
        priority=gpu.priority if gpu.priority != "normal" else "",
        oversubscribe=True if gpu.oversubscribe else None,
        latency=gpu.latency,
        idle=gpu.idle,
    )


def change(policy: Policy, gpu: Gpu | None, now: ResolvedGpu, wanted: GpuShare, *, force: bool = False) -> ResolvedGpu:
    """``now`` with the settings of ``wanted`` (a live change). gpu: for percentages; None where it is not known.

    force: the maximum does not hold. Raises InputError, also for oversubscribe, which a running program cannot change.
    """
    if wanted.oversubscribe is not None and wanted.oversubscribe != now.oversubscribe:
        raise InputError("share: oversubscribe cannot change while the container runs", hint="start it anew")
    total = gpu.memory if gpu is not None else 0
    warnings: list[str] = []
    if not force:
        rules = Policy(maximum=policy.maximum)
        maximum.check(rules, total, now.uuid, wanted, "share", warnings)
    priority = wanted.priority or now.priority
    after = now
    if wanted.memory or wanted.memory_part:
        most = most_of(wanted, total, now.uuid)
        request, most = request_within(wanted, GpuShare(), most, total, now.uuid, "share")
        after = _with_memory(now, request, most, now.uuid, "share")
    after = after.replace(
        cap=wanted.cap or now.cap,
        weight=wanted.weight or now.weight,
        priority=priority,
        idle=wanted.idle or now.idle,
        latency=services.latency(priority, wanted.latency or now.latency, 0, "share", said=wanted.latency),
    )
    services.check(after, now.uuid, "share")
    return after


def _with_memory(now: ResolvedGpu, request: int, most: int, name: str, source: str) -> ResolvedGpu:
    """``now`` with this range (request 0: none) in bytes. Raises InputError."""
    if request and now.oversubscribe:
        raise InputError(
            f"{source}: a range of memory and oversubscribe=on exclude each other on {name}",
            hint="managed memory is not refused to a running program: say mem=10Gi",
        )
    # What is in force stays so where it can: the agent lowers others' limits before it raises one.
    memory = min(max(now.memory, request), most) if request else most
    return now.replace(memory=memory, request=request, most=most if request else 0)


def _said(policy: Policy) -> str:
    return format_gpu(policy.default) or f"the maximum, {format_gpu(policy.maximum) or 'the whole GPU'}"


def _resolve(policy: Policy, gpu: Gpu, said: GpuShare, source: str, warnings: list[str]) -> ResolvedGpu:
    maximum.check(policy, gpu.memory, f"GPU {gpu.index}", said, source, warnings)
    said = services.granted(policy, said, source, warnings)
    wanted = filled(said, policy.default)
    rule = policy.maximum
    memory = most_of(wanted, gpu.memory, f"GPU {gpu.index}")
    if 0 < gpu.memory < max(said.memory, said.request) and not wanted.oversubscribe:
        much = format_gpu(said.replace(cap=0, weight=0, priority="", oversubscribe=None, latency=0, idle=0))
        if not policy.clamp:
            raise InputError(
                f"{source}: {much} is more than GPU {gpu.index} has",
                hint=f"it has {gpu.memory >> 20}Mi; more needs oversubscribe=on",
            )
        warnings.append(f"{source}: {much} is more than GPU {gpu.index} has; it gets the whole")
        memory = 0
    most = most_of(rule, gpu.memory, f"GPU {gpu.index}")
    most = min(memory or most, most or memory)
    oversubscribe = bool(wanted.oversubscribe) and rule.oversubscribe is not False
    request, most = request_within(wanted, rule, most, gpu.memory, f"GPU {gpu.index}", source)
    share = ResolvedGpu(gpu.uuid, gpu.minor, oversubscribe=oversubscribe)
    share = _with_memory(share, request, most, f"GPU {gpu.index}", source)
    memory = share.memory
    if 0 < memory < SENSIBLE_MEMORY:
        warnings.append(
            f"mem={format_memory(memory)} of GPU {gpu.index} is below {SENSIBLE_MEMORY >> 20}Mi: "
            "a CUDA context alone takes about as much"
        )
    cap = min(wanted.cap or CAP_WHOLE, rule.cap or CAP_WHOLE)
    weight = wanted.weight
    if rule.weight and (weight or DEFAULT_WEIGHT) > rule.weight:
        weight = rule.weight
    priority = wanted.priority or "normal"
    if rule.priority and RANK[priority] > RANK[rule.priority]:
        priority = rule.priority
    if oversubscribe and 0 < _architecture(gpu) < PASCAL:
        raise InputError(
            f"{source}: oversubscribe=on has no effect on GPU {gpu.index}, whose compute capability is {gpu.arch}",
            hint="its memory does not move to the host's while programs use it, which takes 6.0 or more; leave it out",
        )
    is_cut = said.priority == SERVICE and priority != SERVICE
    latency = services.latency(
        priority, wanted.latency, services.least(policy, source), source, said=0 if is_cut else said.latency
    )
    idle = min(wanted.idle or rule.idle, rule.idle or wanted.idle)
    resolved = share.replace(cap=cap, weight=weight, priority=priority, latency=latency, idle=idle)
    services.check(resolved, f"GPU {gpu.index}", source)
    return resolved


def _architecture(gpu: Gpu) -> int:
    """The major number of its compute capability; 0: not known."""
    major = gpu.arch.partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _is_whole(gpu: ResolvedGpu) -> bool:
    """Whether it is what a container has without any share."""
    whole = gpu.memory == 0 and gpu.cap == CAP_WHOLE and gpu.weight == 0
    return whole and gpu.priority == "normal" and not (gpu.oversubscribe or gpu.idle)
