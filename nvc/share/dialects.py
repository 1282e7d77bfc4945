"""What a container's environment asks for: NVC_SHARE, or the variables of HAMi, cGPU and KAI. Pure.

Names are compared whole: cGPU takes every variable that begins like one of its own. A value that cannot be read is an
InputError that names the variable, where the originals guess. Sources: specs/gpu-sharing-shims 2 and 5,
gpu-sharing-kernel 1.2. docs/user/sharing.md has the tables for users; a test holds that they name every variable here.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.record import Record
from nvc.share.model import CAP_WHOLE, WHOLE_MEMORY, GpuShare, Share
from nvc.share.spec import MEMORY_LEAST, MEMORY_LIMIT, parse, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

OWN = "NVC_SHARE"
#: The containers' positions that HAMi's indexed variables are read for; HAMi has 16 devices.
POSITIONS = 16

HAMI_MEMORY, HAMI_CORES = "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT"
HAMI_PRIORITY, HAMI_POLICY = "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY"
HAMI_OVERSUBSCRIBE, HAMI_OFF = "CUDA_OVERSUBSCRIBE", "CUDA_DISABLE_CONTROL"
CGPU_MEMORY, CGPU_CARD, CGPU_UNIT = (f"ALIYUN_COM_GPU_MEM_{word}" for word in ("CONTAINER", "DEV", "UNIT"))
CGPU_WEIGHT, CGPU_HIGH, CGPU_OFF = "ALIYUN_COM_GPU_SCHD_WEIGHT", "ALIYUN_COM_GPU_HIGH_PRIO", "CGPU_DISABLE"
KAI_MEMORY = "NVIDIA_GPU_MEMORY_LIMIT"

HAMI = (
    *(HAMI_MEMORY, *(f"{HAMI_MEMORY}_{i}" for i in range(POSITIONS))),
    *(HAMI_CORES, *(f"{HAMI_CORES}_{i}" for i in range(POSITIONS))),
    *(HAMI_PRIORITY, HAMI_POLICY, HAMI_OVERSUBSCRIBE, HAMI_OFF),
)
CGPU = (CGPU_MEMORY, CGPU_CARD, CGPU_UNIT, CGPU_WEIGHT, CGPU_HIGH, CGPU_OFF)
KAI = (KAI_MEMORY,)
#: Accepted without effect; docs/user/sharing.md says why.
IGNORED = (
    *("CUDA_DEVICE_MEMORY_SHARED_CACHE", "LIBCUDA_LOG_LEVEL", "ACTIVE_OOM_KILLER", "CUDA_REDIRECT"),
    "ALIYUN_COM_GPU_VISIBLE_DEVICES",
)
#: Everything that is read.
VARIABLES = frozenset((OWN, *HAMI, *CGPU, *KAI))

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
    """

    share: Share
    source: str
    lenient: bool = False
    warnings: tuple[str, ...] = ()


def read(environment: Mapping[str, str]) -> RequestedShare | None:
    """What the environment asks for, by the first of NVC_SHARE, HAMi, cGPU and KAI that says something; None without.

    Raises InputError.
    """
    if VARIABLES.isdisjoint(environment):
        return None
    if environment.get(OWN):
        return RequestedShare(_own(environment[OWN]), OWN)
    for dialect in (_hami, _cgpu, _kai):
        requested = dialect(environment)
        if requested is not None:
            return requested
    return None


def _own(text: str) -> Share:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{OWN}: {error.message}", hint=error.hint) from None


def _hami(environment: Mapping[str, str]) -> RequestedShare | None:
    present = [name for name in HAMI if environment.get(name)]
    if not present:
        return None
    if _flag(environment, HAMI_OFF):
        return RequestedShare(Share(off=True), HAMI_OFF, lenient=True)
    common = GpuShare(
        memory=_hami_memory(environment, HAMI_MEMORY),
        cap=_hami_cap(environment, HAMI_CORES),
        priority=_hami_priority(environment),
        oversubscribe=_flag(environment, HAMI_OVERSUBSCRIBE),
    )
    no_cap = environment.get(HAMI_POLICY, "") in ("disable", "DISABLE")
    if no_cap:
        common = common.replace(cap=CAP_WHOLE)
    per_gpu = []
    for position in range(POSITIONS):
        memory = _hami_memory(environment, f"{HAMI_MEMORY}_{position}")
        cap = 0 if no_cap else _hami_cap(environment, f"{HAMI_CORES}_{position}")
        if memory or cap:
            own = common.replace(memory=memory or common.memory, cap=cap or common.cap)
            per_gpu.append((f"#{position}", own))
    if common == GpuShare() and not per_gpu:
        return None
    default = common if common != GpuShare() else None
    return RequestedShare(Share(default, tuple(per_gpu)), present[0], lenient=True)


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
    if _flag(environment, CGPU_OFF):
        return RequestedShare(Share(off=True), CGPU_OFF, lenient=True)
    weight, warnings = _cgpu_weight(environment)
    memory, part = _cgpu_memory(environment)
    share = GpuShare(memory, part, weight=weight, priority="high" if _flag(environment, CGPU_HIGH) else "")
    if share == GpuShare():
        return None
    return RequestedShare(Share(share), present[0], True, warnings)


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
