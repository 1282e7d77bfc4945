"""What a mistyped word probably was. Pure, and without imports: a wrong option must not cost more than a right one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Longer words are not looked at: they may be a tenant's.
_LENGTH = 64


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of ``known`` that is nearest to ``word``, the first of several; "" where none is near.

    Near is a third of the letters wrong, missing, too many or exchanged with the next one, at least one; or a word of
    which ``word`` is the only beginning.
    """
    if not word or len(word) > _LENGTH:
        return ""
    candidates = tuple(known)
    begun = [one for one in candidates if len(word) > 1 and one.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    found, least = "", max(1, len(word) // 3) + 1
    for one in candidates:
        if abs(len(one) - len(word)) < least:
            distance = _distance(word.lower(), one.lower())
            if distance < least:
                found, least = one, distance
    return found


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str = "", shown: str = "{}") -> str:
    """A hint: the nearest word, if one is near, and ``otherwise``. shown: how the word is written."""
    found = nearest(word, known)
    return f"did you mean {shown.format(found)}? {otherwise}".strip() if found else otherwise


def _distance(left: str, right: str) -> int:
    """Letters to change, insert, remove, or exchange with their neighbour (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, letter in enumerate(left, 1):
        last, before, row = before, row, [i]
        for j, other in enumerate(right, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other)))
            if i > 1 and j > 1 and letter == right[j - 2] and left[i - 2] == other:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]
