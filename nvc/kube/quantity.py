"""Kubernetes' quantities of memory and whole numbers, as the API server writes them. Pure."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from nvc.base.errors import InputError

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_SCALES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
#: The grammar of resource.Quantity (k8s.io/apimachinery, pkg/api/resource): number; unit, scale or exponent.
_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?[0-9]+))")
#: Characters, and the power of ten beyond which a number of so many is no size: larger integers take seconds to make.
_LONGEST, _POWER = 40, 60
_BEYOND = 1 << 63


def parse(text: object) -> int:
    """The amount; a fraction of one is rounded up, as the API server does. Raises InputError."""
    if isinstance(text, int) and not isinstance(text, bool):
        if not 0 <= text < _BEYOND:
            raise InputError("a number below 0, or with more than 63 bits, is no quantity")
        return text
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise InputError(f"{text!r:.60} is no quantity")
    form = _FORM.fullmatch(text)
    if form is None:
        raise InputError(f"{text!r} is no quantity")
    number, unit, scale, exponent = form.groups()
    power = int(exponent or _SCALES[scale or ""])
    if abs(power) > _POWER:
        raise InputError(f"{text!r} is no quantity of ours: no size has {power} as its power of ten")
    value = Fraction(number) * _UNITS.get(unit, 1) * Fraction(10) ** power
    if not 0 <= value <= _BEYOND - 1:
        raise InputError(f"{text!r} is no quantity of ours: it is below 0, or has more than 63 bits")
    return math.ceil(value)


def write_memory(size: int) -> str:
    """Bytes in the form in which the API server writes them: the largest unit of 1024 that leaves a whole number."""
    for suffix, unit in reversed(_UNITS.items()):
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)
