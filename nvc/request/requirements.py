"""Requirement expressions (``--require``, NVIDIA_REQUIRE_*): parser and evaluation. Pure.

    predicate   := alternative { " " alternative }        any must hold
    alternative := term { "," term }                      all must hold
    term        := name operator value
    operator    := "=" | "!=" | "<" | "<=" | ">" | ">="

Evaluation is lazy, as in the reference (libnvidia-container.md 1.7.5): the first true alternative ends it, the first
false term ends an alternative, and the rest is not even parsed.
"""

from __future__ import annotations

from nvc.base.errors import RequirementError, escaped, shown
from nvc.base.record import Record


class Facts(Record):
    """What a requirement is compared with.

    cuda: CUDA version of the driver ("12.2"); driver: its NVRM version ("535.104.05");
    arch: compute capability of the device ("9.0"); brand: its brand ("Tesla"). None: no device is selected, and
    every condition on a device holds.
    """

    cuda: str
    driver: str
    arch: str | None = None
    brand: str | None = None


_DIGITS_AND_DOTS = frozenset("0123456789.")
_SYMBOLS = "=!<>"
# Operator -> the outcomes of a three-way comparison (fact against value) that satisfy it.
_ACCEPTED = {"=": (0,), "!=": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
# The reference accepts any prefix of an operator; only this prefix is not an operator itself.
_SHORTENED = {"!": "!="}
#: Components of a version as ``_version`` has them: nothing, and the number that the reference takes for an overflow
#: (strtoumax: 2^64 - 1).
_ZERO, _TOO_BIG = (0, ""), (20, str(2**64 - 1))
#: Of an expression in a message: those of CUDA images name a dozen drivers.
_SHOWN = 500
_UPDATE_ADVICE = ", please update your driver to a newer version, or use an earlier cuda container"


def check(expression: str, facts: Facts) -> None:
    """Return if ``expression`` holds for ``facts``.

    Raises RequirementError: `invalid expression` for a term that cannot be read, else `unsatisfied condition: ...`
    with the first alternative.
    """
    alternatives = [alternative for alternative in expression.split(" ") if alternative.strip(",")]
    if not alternatives:
        return
    for alternative in alternatives:
        if all(_holds(term, facts, expression) for term in alternative.split(",") if term):
            return
    first = alternatives[0]
    advice = _UPDATE_ADVICE if first.startswith("cuda>=") else ""
    raise RequirementError(f"unsatisfied condition: {escaped(first[:_SHOWN])}{advice}", hint=_found(facts))


def _found(facts: Facts) -> str:
    parts = [f"cuda={facts.cuda}", f"driver={facts.driver}"]
    if facts.arch is not None:
        parts.append(f"arch={facts.arch}")
    if facts.brand is not None:
        parts.append(f"brand={facts.brand}")
    return f"this machine has {' '.join(parts)}; NVIDIA_DISABLE_REQUIRE=1 skips the check"


def _invalid(term: str, expression: str, why: str) -> RequirementError:
    where = shown(term) if term == expression else f"{shown(term)} in {shown(expression, _SHOWN)}"
    return RequirementError("invalid expression", hint=f"{where}: {why}")


def _holds(term: str, facts: Facts, expression: str) -> bool:
    start = next((index for index, char in enumerate(term) if char in _SYMBOLS), len(term))
    value = term[start:].lstrip(_SYMBOLS)
    name, symbols = term[:start].lower(), term[start : len(term) - len(value)]
    operator = _SHORTENED.get(symbols, symbols)
    if operator not in _ACCEPTED or not value:
        near = "; write = for equality" if symbols == "==" else ""
        raise _invalid(term, expression, f"expected one of {' '.join(_ACCEPTED)} and a value after the name{near}")
    if name in ("cuda", "driver", "arch"):
        fact = {"cuda": facts.cuda, "driver": facts.driver, "arch": facts.arch}[name]
        return fact is None or _compare(fact, value, term, expression) in _ACCEPTED[operator]
    if name == "brand":
        if facts.brand is None:
            return True
        if operator not in ("=", "!="):
            raise _invalid(term, expression, "a brand can be compared with = and != only")
        return (facts.brand.lower() == value.lower()) == (operator == "=")
    raise _invalid(term, expression, "the name must be one of cuda, driver, arch, brand")


def _compare(fact: str, value: str, term: str, expression: str) -> int:
    ours, theirs = _version(fact), _version(value)
    if ours is None or theirs is None:
        wrong = value if theirs is None else fact
        raise _invalid(term, expression, f"{shown(wrong)} is not a version (digits and dots, first a digit)")
    for left, right in zip(ours, theirs, strict=False):
        if max(left, right) >= _TOO_BIG:
            raise _invalid(term, expression, "a number is larger than 64 bits")
        if left != right:
            return 1 if left > right else -1
    return any(part > _ZERO for part in ours[len(theirs) :]) - any(part > _ZERO for part in theirs[len(ours) :])


def _version(text: str) -> list[tuple[int, str]] | None:
    """Components that order as their numbers do; None if it is no version.

    A number stays text without leading zeros, with its length before it: int() refuses thousands of digits. Empty
    components are skipped, except at the beginning.
    """
    if not text or text[0] == "." or not _DIGITS_AND_DOTS.issuperset(text):
        return None
    return [(len(digits), digits) for digits in (part.lstrip("0") for part in text.split(".") if part)]
