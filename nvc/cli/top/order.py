"""The order of containers in ``top``, and the help that its keys show. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.agent.view import Seen, SeenShare


class Order(NamedTuple):
    """A key of the keyboard, what it is called on the command line, and how containers are compared."""

    key: str
    word: str
    meaning: str
    of: Callable[[SeenShare], float | str] | None


#: The first is that of the agent: as containers came.
ORDERS = (
    Order("o", "came", "as containers came", None),
    Order("m", "memory", "memory used, the most first", lambda share: -share.memory),
    Order("t", "time", "part of the GPU's time (ACHIEVED), the most first", lambda share: -(share.achieved or 0.0)),
    Order("f", "frozen", "time off the GPU (FROZEN), the most first", lambda share: -share.frozen_ns),
    Order("d", "denied", "denials, the most first", lambda share: -sum(share.denials.values())),
    Order("n", "name", "name, or id", lambda share: share.name or share.container),
)
WORDS = tuple(order.word for order in ORDERS)
#: Keys, beside those of ORDERS.
KEYS = (
    ("q, Escape", "end"),
    ("h, ?", "this help; any key goes back"),
    ("p", "show or hide processes"),
    ("j, k, arrows", "move"),
)


def ordered(seen: Seen, word: str) -> Seen:
    """With each GPU's containers in this order; equal ones stay as they were."""
    compare = next(order.of for order in ORDERS if order.word == word)
    if compare is None:
        return seen
    return seen.replace(gpus=tuple(gpu.replace(shares=tuple(sorted(gpu.shares, key=compare))) for gpu in seen.gpus))


def by_key(key: str) -> str:
    """The word of a key's order; "" for another key."""
    return next((order.word for order in ORDERS if order.key == key.lower()), "")


def help_lines(word: str) -> list[Text]:
    """What the keys do. word: the order that there is."""
    lines = [Text("nvc-py top: keys", "bold"), Text()]
    lines += [Text(f"  {key:<14}{meaning}") for key, meaning in KEYS]
    lines += [Text(), Text("  order of containers:")]
    lines += [Text(f"  {order.key:<14}{order.meaning}", "bold" if order.word == word else "") for order in ORDERS]
    return [*lines, Text(), Text("  The manual explains the columns: nvc-py help top", "dim")]
