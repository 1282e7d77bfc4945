"""Amounts of a GPU's memory in share specs: ``mem=10Gi``, ``mem=12.5%``, ``mem=8Gi..40Gi``. Pure.

Quantities are Kubernetes': bytes, or with Ki Mi Gi Ti (1024) or k K M G T (1000), and 1Mi or more: mem=10 has lost its
unit. Of a range the first amount is the *request*, which is guaranteed, the second the most; where both are the same
it is no range.
"""

from __future__ import annotations

from nvc.base.errors import InputError, shown
from nvc.share.model import WHOLE_MEMORY, GpuShare

#: No GPU has a pebibyte; larger numbers are mistakes.
MEMORY_LIMIT = 1 << 50
#: Nothing computes in less; a smaller number has lost its unit.
MEMORY_LEAST = 1 << 20
#: Between the request and the most.
TO = ".."

_DIGITS = frozenset("0123456789")
_UNITS = (
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 10**3),
    ("K", 10**3),
    ("M", 10**6),
    ("G", 10**9),
    ("T", 10**12),
)
_WHOLE_DIGITS, _FRACTION_DIGITS = 20, 9
_ALLOWED = "mem takes bytes, a number with Ki, Mi, Gi, Ti (1024) or K, M, G, T (1000), or a percentage: mem=10Gi"
_UNIT_WANTED = "mem is 1Mi or more, and a number without a unit is bytes; write mem=10Gi"


def parse(value: str) -> dict[str, int]:
    """The fields of GpuShare that "mem=VALUE" sets. Raises InputError."""
    first, is_range, last = value.partition(TO)
    request = _amount(first)
    if not is_range:
        return {"memory_part" if request[1] else "memory": request[0]}
    most = _amount(last)
    if request[1] == most[1] and request[0] > most[0]:
        raise _reversed(first, last, "share")
    fields = {"memory_part" if most[1] else "memory": most[0]}
    if request != most:
        fields["request_part" if request[1] else "request"] = request[0]
    return fields


def text(share: GpuShare) -> str:
    """What ``parse`` reads as the memory of ``share``, which says some."""
    most = _text(share.memory, share.memory_part)
    return f"{_text(share.request, share.request_part)}{TO}{most}" if has_range(share) else most


def has_range(share: GpuShare) -> bool:
    return bool(share.request or share.request_part)


def most_of(share: GpuShare, total: int, gpu: str) -> int:
    """The most that a share says, in bytes; 0 for no limit. Raises InputError for a part of an unknown size.

    total: bytes of the GPU, 0: not known. gpu: its name, for messages.
    """
    return _bytes(share.memory, share.memory_part, total, gpu)


def request_of(share: GpuShare, total: int, gpu: str) -> int:
    """The request of a range, in bytes; 0 without a range. Raises InputError as ``most_of``."""
    return _bytes(share.request, share.request_part, total, gpu) if has_range(share) else 0


def request_within(
    wanted: GpuShare, maximum: GpuShare, most: int, total: int, gpu: str, source: str
) -> tuple[int, int]:
    """(request, the most) in bytes of a share that has ``most`` (0: no limit); request 0: it has no range.

    wanted: what was said. A range in ``maximum`` bounds requests as well. Raises InputError.
    """
    bound = request_of(maximum, total, gpu)
    said = request_of(wanted, total, gpu)
    if not said and not bound:
        return 0, most
    whole = most or total
    if not whole:
        raise InputError(
            f"{source}: the memory of {gpu} is not known, and a range needs an end",
            hint="say it in bytes: mem=8Gi..40Gi",
        )
    says = most_of(wanted, total, gpu)
    if said and says and said > says:
        raise _reversed(_text(wanted.request, wanted.request_part), _text(wanted.memory, wanted.memory_part), source)
    request = said or (whole if wanted.memory or wanted.memory_part else bound)
    request = min(request, bound or request, whole)
    return (request, whole) if request < whole else (0, most)


def format_memory(size: int) -> str:
    """Bytes in the largest unit of 1024 that leaves a whole number."""
    for suffix, unit in reversed(_UNITS[:4]):
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def number(text: str, unit: int) -> int | None:
    """``text`` (digits, perhaps a point and digits) times ``unit``, rounded down; None if it is something else."""
    whole, point, fraction = text.partition(".")
    if not _DIGITS.issuperset(whole + fraction) or not whole or (point and not fraction):
        return None
    if len(whole) > _WHOLE_DIGITS or len(fraction) > _FRACTION_DIGITS:
        return None
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * unit // scale


def decimal(value: int, places: int) -> str:
    whole, rest = divmod(value, 10**places)
    return f"{whole}.{rest:0{places}d}".rstrip("0") if rest else str(whole)


def _text(size: int, part: int) -> str:
    return f"{decimal(part, 4)}%" if part else format_memory(size)


def _reversed(request: str, most: str, source: str) -> InputError:
    return InputError(
        f"{source}: mem={request}{TO}{most} guarantees more than it allows",
        hint="the request stands first: mem=8Gi..40Gi",
    )


def _amount(value: str) -> tuple[int, bool]:
    """(amount, whether it is a part of the GPU's). Raises InputError."""
    if value.endswith("%"):
        part = number(value[:-1], WHOLE_MEMORY // 100)
        if part is None or not 0 < part <= WHOLE_MEMORY or len(value.partition(".")[2]) > 5:
            raise InputError(f"share: mem={shown(value)} is not above 0% and up to 100%", hint=_ALLOWED)
        return part, True
    unit = 1
    digits = value
    for suffix, size in _UNITS:
        if value.endswith(suffix):
            digits, unit = value[: -len(suffix)], size
            break
    amount = number(digits, unit)
    if amount is None or (unit == 1 and "." in value):
        raise InputError(f"share: mem={shown(value)} is not an amount of memory", hint=_ALLOWED)
    if not 0 < amount <= MEMORY_LIMIT:
        raise InputError(f"share: mem={shown(value)} is {'too much' if amount else 'nothing'}", hint=_ALLOWED)
    if amount < MEMORY_LEAST:
        what = f"{amount} bytes" if unit == 1 else "less than 1Mi"
        raise InputError(f"share: mem={shown(value)} is {what}, with which nothing computes", hint=_UNIT_WANTED)
    return amount, False


def _bytes(size: int, part: int, total: int, gpu: str) -> int:
    if size:
        return size
    if part in (0, WHOLE_MEMORY):
        return 0
    if not total:
        raise InputError(
            f"share: the memory of {gpu} is not known, so mem={_text(0, part)} cannot be counted",
            hint="say the memory in bytes: mem=10Gi",
        )
    # Whole MiB are enough: the driver gives pages of 2 MiB.
    return max(total * part // WHOLE_MEMORY >> 20, 1) << 20
