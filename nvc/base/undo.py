"""The undo log: every change pushes the step that reverts it. ``ExitStack`` without the start-up cost."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self


class Undo:
    """A stack of steps that revert changes.

    As a context manager it rolls back on the way out unless ``commit`` was called. What went wrong while rolling
    back is kept in ``errors``: the first failure is what the user must read, these are for the log.
    """

    __slots__ = ("_steps", "errors")

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.errors: list[Exception] = []

    def __len__(self) -> int:
        return len(self._steps)

    def push(self, function: Callable[..., Any], *args: Any) -> None:
        """Call ``function(*args)`` on rollback. Descriptors in ``args`` stay open until rollback or commit."""
        self._steps.append((function, args))

    def rollback(self) -> list[Exception]:
        """Run every step, last pushed first, and drop them. Never raises: returns the exceptions of the steps."""
        errors: list[Exception] = []
        while self._steps:
            function, args = self._steps.pop()
            try:
                function(*args)
            except Exception as error:
                errors.append(error)
        self.errors += errors
        return errors

    def commit(self) -> None:
        """Keep the changes: drop every step without running it."""
        self._steps.clear()

    def hand_over(self, other: Undo) -> None:
        """Move every step to ``other`` (a nested transaction that succeeded)."""
        other._steps += self._steps
        self._steps = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rollback()
