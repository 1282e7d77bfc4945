"""The uids and gids of supervisors and the prober: no account of the host, and no user namespace, may have them."""

from __future__ import annotations

from nvc.base.errors import InitializationError, reason
from nvc.guard.supervisors import USER_COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: passwd(5), group(5), subuid(5), subgid(5): the field with the (first) id, and that with their number; -1: one id.
_FILES = {"/etc/passwd": (2, -1), "/etc/group": (2, -1), "/etc/subuid": (1, 2), "/etc/subgid": (1, 2)}


def check(first: int, root: str = "") -> None:
    """``first`` and the USER_COUNT ids behind it are in no range of the host's files.

    Other sources of accounts (LDAP, sssd) are not asked: they may have millions.
    root: before the paths. Raises InitializationError.
    """
    last = first + USER_COUNT
    for path in _FILES:
        for line, low, high in _ranges(root, path):
            if low <= last and first <= high:
                name = line.partition(":")[0][:40]
                raise InitializationError(
                    f"{path}: {name!r} has ids {low} to {high}, and guards have {first} to {last}",
                    hint="name other ones in /etc/nvc/config.toml: [agent] first-uid = NUMBER (docs/user/agent.md)",
                )


def _ranges(root: str, path: str) -> Iterator[tuple[str, int, int]]:
    """Line, first and last id of each; without lines that are none, as the C library. Raises InitializationError."""
    at, count = _FILES[path]
    try:
        with open(root + path, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.rstrip("\n").split(":")
                numbers = [fields[one] for one in (at, count) if 0 <= one < len(fields)]
                if len(numbers) != 1 + (count >= 0) or not all(one.isascii() and one.isdigit() for one in numbers):
                    continue
                low, many = int(numbers[0]), int(numbers[1]) if count >= 0 else 1
                if many:
                    yield line, low, low + many - 1
    except FileNotFoundError:
        return
    except OSError as error:
        raise InitializationError(
            f"{path}: {reason(error)}", hint="the agent reads it, so that no account has the uids of guards"
        ) from None
