"""Kubernetes' quantities of memory and whole numbers, as the API server writes them. Pure."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from nvc.base.errors import InputError

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_SCALES = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_LONGEST = 40


def parse(text: object) -> int:
    """The amount; a fraction of one is rounded up, as the API server does. Raises InputError."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str) or not 0 < len(text) <= _LONGEST:
        raise InputError(f"{text!r:.60} is no quantity")
    number, factor = text, Decimal(1)
    if text[-2:] in _UNITS:
        number, factor = text[:-2], Decimal(_UNITS[text[-2:]])
    elif text[-1] in _SCALES:
        number, factor = text[:-1], Decimal(10) ** _SCALES[text[-1]]
    try:
        value = Decimal(number) * factor
        whole = int(value.to_integral_value(rounding="ROUND_CEILING"))
    except (InvalidOperation, OverflowError, ValueError) as error:
        raise InputError(f"{text!r} is no quantity") from error
    if not 0 <= whole < 1 << 63:
        raise InputError(f"{text!r} is no quantity of ours")
    return whole


def write_memory(size: int) -> str:
    """Bytes in the form in which the API server writes them: the largest unit of 1024 that leaves a whole number."""
    for suffix, unit in reversed(_UNITS.items()):
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)
