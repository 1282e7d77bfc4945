"""The undo log: every change pushes the step that reverts it. ``ExitStack`` without the start-up cost."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self


class Undo:
    """A stack of steps that revert changes; those that are urgent (what is mounted) before all others.

    As a context manager it rolls back on the way out unless ``commit`` was called. What went wrong while rolling
    back is kept in ``errors``: the first failure is what the user must read, these are for the log.
    """

    __slots__ = ("_steps", "_urgent", "errors")

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._urgent: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.errors: list[Exception] = []

    def __len__(self) -> int:
        return len(self._steps) + len(self._urgent)

    def push(self, function: Callable[..., Any], *args: Any) -> None:
        """Call ``function(*args)`` on rollback. Descriptors in ``args`` stay open until rollback or commit."""
        self._steps.append((function, args))

    def push_urgent(self, function: Callable[..., Any], *args: Any) -> None:
        """As ``push``, for a step that depends on no other one and must not wait for any."""
        self._urgent.append((function, args))

    def rollback(self) -> list[Exception]:
        """Run every step, last pushed first and urgent ones before others, and drop them.

        Never raises: returns the exceptions of the steps.
        """
        errors: list[Exception] = []
        while steps := self._urgent or self._steps:
            function, args = steps.pop()
            try:
                function(*args)
            except Exception as error:
                errors.append(error)
        self.errors += errors
        return errors

    def commit(self) -> None:
        """Keep the changes: drop every step without running it."""
        self._urgent.clear()
        self._steps.clear()

    def hand_over(self, other: Undo) -> None:
        """Move every step to ``other`` (a nested transaction that succeeded)."""
        other._urgent += self._urgent
        other._steps += self._steps
        self._urgent, self._steps = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rollback()
