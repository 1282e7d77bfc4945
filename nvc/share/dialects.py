"""What a container's environment asks for: NVC_SHARE, or the variables of other systems. Pure.

Names are compared whole: cGPU takes every variable that begins like one of its own. A value that cannot be read is an
InputError that names the variable, where the originals guess; so is a variable that is named like a limit and is of no
system here, as the container would have the whole GPU. Sources: docs/reference/gpu-sharing-kernel.md 1.2 (cGPU, eGPU),
HAMi-core and vgpu-manager's readers of their environment, NVIDIA's MPS documentation (environment variables).
docs/reference/share-variables.md has the tables for users; a test holds that they name every variable here.
"""

from __future__ import annotations

from nvc.base.errors import InputError, escaped, shown
from nvc.base.record import Record
from nvc.share.memory import MEMORY_LEAST, MEMORY_LIMIT
from nvc.share.model import CAP_WHOLE, WHOLE_MEMORY, GpuShare, Share
from nvc.share.spec import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OWN = "NVC_SHARE"
#: The containers' positions that HAMi's indexed variables are read for; HAMi has 16 devices.
POSITIONS = 16

HAMI_MEMORY, HAMI_CORES = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
HAMI_PRIORITY, HAMI_POLICY = "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY"
HAMI_OVERSUBSCRIBE, HAMI_OFF = "CUDA_OVERSUBSCRIBE", "CUDA_DISABLE_CONTROL"
CGPU_MEMORY, CGPU_CARD, CGPU_UNIT = (f"ALIYUN_COM_GPU_MEM_{word}" for word in ("CONTAINER", "DEV", "UNIT"))
CGPU_WEIGHT, CGPU_HIGH, CGPU_OFF = "ALIYUN_COM_GPU_SCHD_WEIGHT", "ALIYUN_COM_GPU_HIGH_PRIO", "CGPU_DISABLE"
KAI_MEMORY = "NVIDIA_GPU_MEMORY_LIMIT"
VGPU_MEMORY, VGPU_CORES, VGPU_SOFT = "CUDA_MEM_LIMIT", "CUDA_CORE_LIMIT", "CUDA_CORE_SOFT_LIMIT"
VGPU_RATIO, VGPU_OVERSOLD = "CUDA_MEM_RATIO", "CUDA_MEM_OVERSOLD"
EGPU_MEMORY, EGPU_CORES = "GPU_MEM_PER_DEVICE", "GPU_UTIL_PER_DEVICE"
MPS_MEMORY, MPS_THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def _indexed(*names: str) -> tuple[str, ...]:
    """Each name, and with the positions of the container's GPUs behind it."""
    return tuple(word for name in names for word in (name, *(f"{name}_{i}" for i in range(POSITIONS))))


HAMI = (*_indexed(HAMI_MEMORY, HAMI_CORES), *(HAMI_PRIORITY, HAMI_POLICY, HAMI_OVERSUBSCRIBE, HAMI_OFF))
CGPU = (CGPU_MEMORY, CGPU_CARD, CGPU_UNIT, CGPU_WEIGHT, CGPU_HIGH, CGPU_OFF)
KAI = (KAI_MEMORY,)
VGPU = _indexed(VGPU_MEMORY, VGPU_CORES, VGPU_SOFT, VGPU_RATIO, VGPU_OVERSOLD)
EGPU = (EGPU_MEMORY, EGPU_CORES)
MPS = (MPS_MEMORY, MPS_THREADS)
#: Accepted without effect; docs/reference/share-variables.md says why.
IGNORED = (
    *("CUDA_DEVICE_MEMORY_SHARED_CACHE", "LIBCUDA_LOG_LEVEL", "ACTIVE_OOM_KILLER", "CUDA_REDIRECT"),
    "ALIYUN_COM_GPU_VISIBLE_DEVICES",
)
#: Everything that is read.
VARIABLES = frozenset((OWN, *HAMI, *CGPU, *KAI, *VGPU, *EGPU, *MPS))
#: How a limit is named that no system here has: it begins with the first, has one of the second, ends with the third,
#: which may have a position behind it.
_OWNERS, _KINDS, _LIMIT = ("CUDA", "GPU", "NVIDIA", "VGPU"), ("MEM", "MEMORY", "CORE", "CORES", "SM", "UTIL"), "LIMIT"

_DIGITS = frozenset("0123456789")
_NUMBER_DIGITS = 19
#: HAMi's letters count by 1024, in either case.
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_CGPU_CARD_UNITS = 16
_CGPU_WEIGHTS = 16
#: cGPU's weight of a container that says nothing is 1, ours is 10.
_WEIGHT_FACTOR = 10


class RequestedShare(Record):
    """A share as requested. source: the annotation, option or variable. lenient: a dialect's, whose variables may name
    GPUs that the container has not. warnings: values that are taken in another sense than they were written.
    also: what other sources say, which give no more than this one, nor this one than they (``nvc.share.tightest``).
    """

    share: Share
    source: str
    lenient: bool = False
    warnings: tuple[str, ...] = ()
    also: tuple[RequestedShare, ...] = ()


def read(environment: Mapping[str, str], *, alone: bool = True) -> RequestedShare | None:
    """What the environment asks for: NVC_SHARE and the other systems' variables; None where none says anything.

    alone: nothing but the environment asks. Raises InputError.
    """
    own = environment.get(OWN, "")
    for name in environment if alone and not own else ():
        if name not in VARIABLES and environment[name] and is_limit(name):
            raise InputError(
                f"{escaped(name[:100])} is named like a limit of a GPU, and is of no system that nvc-py knows",
                hint=f"say it as {OWN}=mem=10Gi,cap=50%; {OWN}=off where it is the program's own",
            )
    if VARIABLES.isdisjoint(environment):
        return None
    found = [RequestedShare(_own(own), OWN)] if own else []
    return combined((*found, *filter(None, (dialect(environment) for dialect in _DIALECTS))))


def combined(found: Sequence[RequestedShare]) -> RequestedShare | None:
    """Several sources as one, the first with what the others say. ``off`` counts where no other one asks for a share:
    an image could say it.
    """
    asking = [one for one in found if not one.share.off]
    if not asking:
        return found[0] if found else None
    first, *others = asking
    warnings = [f"{one.source}: off does not count beside {first.source}" for one in found if one.share.off]
    warnings += [f"{first.source} and {other.source}: of each setting the tighter one counts" for other in others]
    also = [flat for other in others for flat in (other.replace(also=()), *other.also)]
    said = [text for one in asking for text in one.warnings]
    return first.replace(warnings=(*dict.fromkeys((*said, *warnings)),), also=(*first.also, *also))


def is_limit(name: str) -> bool:
    """Whether a variable is named like a limit of GPUs' memory or time, such as GPU_MEMORY_LIMIT or CUDA_SM_LIMIT_3."""
    words = name.split("_")
    while words and not words[-1].strip("0123456789"):
        words.pop()
    if len(words) < 3 or words[0] not in _OWNERS or words[-1] not in (_LIMIT, f"{_LIMIT}S"):
        return False
    return not set(words[1:-1]).isdisjoint(_KINDS)


def filled(share: GpuShare, default: GpuShare) -> GpuShare:
    """``share``, completed by the settings of ``default``."""
    memory = share if share.memory or share.memory_part else default
    return GpuShare(
        memory.memory,
        memory.memory_part,
        share.cap or default.cap,
        share.weight or default.weight,
        share.priority or default.priority,
        default.oversubscribe if share.oversubscribe is None else share.oversubscribe,
        share.latency or default.latency,
        memory.request,
        memory.request_part,
        share.idle or default.idle,
    )


def _own(text: str) -> Share:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{OWN}: {error.message}", hint=error.hint) from None


def _hami(environment: Mapping[str, str]) -> RequestedShare | None:
    present = [name for name in HAMI if environment.get(name)]
    if not present:
        return None
    off = bool(_flag(environment, HAMI_OFF))
    common = GpuShare(
        memory=_hami_memory(environment, HAMI_MEMORY),
        cap=_hami_cap(environment, HAMI_CORES),
        priority=_hami_priority(environment),
        oversubscribe=_flag(environment, HAMI_OVERSUBSCRIBE),
    )
    if not common.cap and environment.get(HAMI_POLICY, "") in ("disable", "DISABLE"):
        common = common.replace(cap=CAP_WHOLE)
    per_gpu = []
    for position in range(POSITIONS):
        memory = _hami_memory(environment, f"{HAMI_MEMORY}_{position}")
        cap = _hami_cap(environment, f"{HAMI_CORES}_{position}")
        if memory or cap:
            own = common.replace(memory=_less(memory, common.memory), cap=_less(cap, common.cap))
            per_gpu.append((f"#{position}", own))
    if common == GpuShare() and not per_gpu:
        return RequestedShare(Share(off=True), HAMI_OFF, lenient=True) if off else None
    default = common if common != GpuShare() else None
    return RequestedShare(Share(default, tuple(per_gpu)), present[0], True, _not_off(off, HAMI_OFF, present))


def _not_off(off: bool, name: str, present: Sequence[str]) -> tuple[str, ...]:
    return (f"{name}: off does not count beside {present[0]}",) if off else ()


def _less(first: int, other: int) -> int:
    """Of two that are said, the tighter one: an image may have said either."""
    return min(first, other) if first and other else first or other


def _hami_memory(environment: Mapping[str, str], name: str) -> int:
    """Bytes; 0 is no limit, as in HAMi. strtoul's bases: 0x1F, 017, 15."""
    text = environment.get(name, "").strip(" ")
    if not text:
        return 0
    unit = _SUFFIXES.get(text[-1].lower(), 1)
    digits = text[:-1] if unit > 1 else text
    value = _based(digits)
    if value is None or value * unit > MEMORY_LIMIT or 0 < value * unit < MEMORY_LEAST:
        raise InputError(f"{name}={shown(text)} is not an amount of memory", hint="write it as HAMi does: 4096m or 4g")
    return value * unit


def _based(digits: str) -> int | None:
    """A number in strtoul's base 0."""
    base, digits = (16, digits[2:]) if digits[:2].lower() == "0x" else (8 if digits[:1] == "0" else 10, digits)
    known = {16: "0123456789abcdefABCDEF", 8: "01234567", 10: "0123456789"}[base]
    if not digits or len(digits) > _NUMBER_DIGITS or not frozenset(known).issuperset(digits):
        return None
    return int(digits, base)


def _hami_cap(environment: Mapping[str, str], name: str) -> int:
    """1/1000; 0 says nothing, 100 and more is no cap."""
    value = _number(environment, name, "a percentage from 0 to 100")
    return min(value * 10, CAP_WHOLE)


def _hami_priority(environment: Mapping[str, str]) -> str:
    if not environment.get(HAMI_PRIORITY):
        return ""
    return "normal" if _number(environment, HAMI_PRIORITY, "0 (high) or 1") else "high"


def _cgpu(environment: Mapping[str, str]) -> RequestedShare | None:
    present = [name for name in CGPU if environment.get(name)]
    if not present:
        return None
    off = bool(_flag(environment, CGPU_OFF))
    weight, warnings = _cgpu_weight(environment)
    memory, part = _cgpu_memory(environment)
    share = GpuShare(memory, part, weight=weight, priority="high" if _flag(environment, CGPU_HIGH) else "")
    if share == GpuShare():
        return RequestedShare(Share(off=True), CGPU_OFF, lenient=True) if off else None
    return RequestedShare(Share(share), present[0], True, (*warnings, *_not_off(off, CGPU_OFF, present)))


def _cgpu_memory(environment: Mapping[str, str]) -> tuple[int, int]:
    """(bytes, part of the card in 1/1,000,000), one of them 0: the card is counted in ..._DEV units, 16 by default."""
    units = _number(environment, CGPU_MEMORY, "a whole number of units")
    card = _number(environment, CGPU_CARD, "the card's whole number of units")
    unit = environment.get(CGPU_UNIT, "")
    if unit not in ("", "GB"):
        raise InputError(f"{CGPU_UNIT}={shown(unit)} is unknown", hint="GB is the one unit that cGPU has")
    if unit and units and not card:
        if units > MEMORY_LIMIT >> 30:
            raise InputError(f"{CGPU_MEMORY}={units} is more than any GPU has", hint=f"{CGPU_UNIT}=GB counts in GiB")
        return units << 30, 0
    card = card or _CGPU_CARD_UNITS
    if units > card:
        raise InputError(
            f"{CGPU_MEMORY}={units} is more than the card's {card} units",
            hint=f"{CGPU_CARD} says how many units a card has; it is 16 where it is not said",
        )
    return 0, units * WHOLE_MEMORY // card


def _cgpu_weight(environment: Mapping[str, str]) -> tuple[int, tuple[str, ...]]:
    if not environment.get(CGPU_WEIGHT):
        return 0, ()
    weight = _number(environment, CGPU_WEIGHT, f"a weight from 1 to {_CGPU_WEIGHTS}")
    if 1 <= weight <= _CGPU_WEIGHTS:
        return weight * _WEIGHT_FACTOR, ()
    return _WEIGHT_FACTOR, (f"{CGPU_WEIGHT}={weight} is not from 1 to {_CGPU_WEIGHTS} and counts as 1, as in cGPU",)


def _kai(environment: Mapping[str, str]) -> RequestedShare | None:
    mebibytes = _number(environment, KAI_MEMORY, "a number of MiB")
    if not mebibytes:
        return None
    if mebibytes > MEMORY_LIMIT >> 20:
        raise InputError(f"{KAI_MEMORY}={mebibytes} is more than any GPU has", hint="it counts in MiB")
    return RequestedShare(Share(GpuShare(mebibytes << 20)), KAI_MEMORY, lenient=True)


def _vgpu(environment: Mapping[str, str]) -> RequestedShare | None:
    present = [name for name in VGPU if environment.get(name)]
    if not present:
        return None
    common, per_gpu = _vgpu_gpu(environment, ""), []
    for position in range(POSITIONS):
        own = _vgpu_gpu(environment, f"_{position}")
        if own != GpuShare():
            own = own.replace(memory=_less(own.memory, common.memory), cap=_less(own.cap, common.cap))
            per_gpu.append((f"#{position}", filled(own, common)))
    if common == GpuShare() and not per_gpu:
        return None
    default = common if common != GpuShare() else None
    soft = [name for name in present if name.startswith(VGPU_SOFT)]
    warnings = (f"{soft[0]}: no container has more than its cap while the GPU is idle",) if soft else ()
    return RequestedShare(Share(default, tuple(per_gpu)), present[0], True, warnings)


def _vgpu_gpu(environment: Mapping[str, str], suffix: str) -> GpuShare:
    """The settings in the variables that have this suffix."""
    ratio = environment.get(f"{VGPU_RATIO}{suffix}", "").strip(" ")
    if ratio and (ratio.partition(".")[0] != "1" or ratio.partition(".")[2].strip("0")):
        raise InputError(
            f"{VGPU_RATIO}{suffix}={shown(ratio)} is not supported: memory is not multiplied",
            hint=f"say the memory itself, {VGPU_MEMORY}=8g, and {VGPU_OVERSOLD}=true",
        )
    cores, soft = (
        min(_number(environment, f"{name}{suffix}", "a percentage from 0 to 100") * 10, CAP_WHOLE)
        for name in (VGPU_CORES, VGPU_SOFT)
    )
    oversubscribe = _flag(environment, f"{VGPU_OVERSOLD}{suffix}")
    return GpuShare(_size(environment, f"{VGPU_MEMORY}{suffix}"), cap=_less(cores, soft), oversubscribe=oversubscribe)


def _size(environment: Mapping[str, str], name: str) -> int:
    """Bytes, also with a point and k, m, g or t (1024) in either case; 0 says nothing."""
    text = environment.get(name, "").strip(" ")
    return _bytes(text, name) if text else 0


def _bytes(text: str, name: str) -> int:
    unit = {**_SUFFIXES, "t": 1 << 40}.get(text[-1:].lower(), 1)
    whole, point, fraction = (text[:-1] if unit > 1 else text).partition(".")
    digits = whole + fraction
    good = whole and len(digits) <= _NUMBER_DIGITS and _DIGITS.issuperset(digits) and bool(point) == bool(fraction)
    value: int = int(digits) * unit // 10 ** len(fraction) if good else -1
    if not good or value > MEMORY_LIMIT or 0 < value < MEMORY_LEAST:
        raise InputError(f"{name}={shown(text)} is not an amount of memory", hint="write bytes, or 4096m or 4g")
    return value


def _egpu(environment: Mapping[str, str]) -> RequestedShare | None:
    present = [name for name in EGPU if environment.get(name)]
    cap = min(_number(environment, EGPU_CORES, "a percentage from 0 to 100") * 10, CAP_WHOLE)
    share = GpuShare(_size(environment, EGPU_MEMORY), cap=cap)
    return RequestedShare(Share(share), present[0], lenient=True) if share != GpuShare() else None


def _mps(environment: Mapping[str, str]) -> RequestedShare | None:
    """Of MPS clients, which need a server for it. GPUs are counted as the client sees them, or named by UUID."""
    threads = environment.get(MPS_THREADS, "").strip(" ")
    whole, _, fraction = threads.partition(".")
    cap = int(f"{whole}{fraction[:1] or 0}") if _is_decimal(whole, fraction) else 0
    if threads and not 10 <= cap <= CAP_WHOLE:
        raise InputError(
            f"{MPS_THREADS}={shown(threads)} is not a percentage from 1 to 100", hint="it is cap here: 50 is cap=50%"
        )
    per_gpu: dict[str, GpuShare] = {}
    for part in filter(None, environment.get(MPS_MEMORY, "").replace(" ", "").split(",")):
        gpu, equals, size = part.partition("=")
        text = size.removesuffix("B")
        if not equals or not text:
            raise InputError(f"{MPS_MEMORY}: {shown(part)} is not GPU=SIZE", hint="write it as MPS does: 0=1G,1=512M")
        try:
            ((selector, _),) = parse(f"{'#' if _DIGITS.issuperset(gpu) else ''}{gpu}:weight=1").per_gpu
        except (InputError, ValueError):
            raise InputError(
                f"{MPS_MEMORY}: {shown(gpu)} names no GPU", hint="its position from 0, or its UUID"
            ) from None
        if selector in per_gpu:
            raise InputError(f"{MPS_MEMORY}: GPU {shown(gpu)} is named twice", hint="name it once")
        per_gpu[selector] = GpuShare(_bytes(text, MPS_MEMORY), cap=cap)
    per_gpu = {selector: gpu for selector, gpu in per_gpu.items() if gpu != GpuShare()}
    if not per_gpu and not cap:
        return None
    warnings = (f"{MPS_THREADS} is cap here; an MPS server limits threads by it as well",) if cap else ()
    default = GpuShare(cap=cap) if cap else None
    return RequestedShare(
        Share(default, tuple(per_gpu.items())), MPS_MEMORY if per_gpu else MPS_THREADS, True, warnings
    )


def _is_decimal(whole: str, fraction: str) -> bool:
    return bool(whole) and len(whole + fraction) <= _NUMBER_DIGITS and _DIGITS.issuperset(whole + fraction)


def _flag(environment: Mapping[str, str], name: str) -> bool | None:
    """None where the variable is not set, or empty."""
    text = environment.get(name, "").strip(" ").lower()
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    if text:
        raise InputError(f"{name}={shown(text)} is neither true nor false", hint="write true, false, 1 or 0")
    return None


def _number(environment: Mapping[str, str], name: str, what: str) -> int:
    """A number that is not negative; 0 where the variable is not set, or empty."""
    text = environment.get(name, "").strip(" ")
    if not text:
        return 0
    if len(text) > _NUMBER_DIGITS or not _DIGITS.issuperset(text):
        raise InputError(f"{name}={shown(text)} is not {what}", hint="write a whole number, in decimal digits")
    return int(text)


_DIALECTS = (_hami, _cgpu, _kai, _vgpu, _egpu, _mps)
