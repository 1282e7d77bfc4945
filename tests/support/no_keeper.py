"""A keeper that keeps nothing, for the agent's sockets without an agent."""

from __future__ import annotations

from nvc.agent.keeping import Keeping


class NoKeeper(Keeping):
    """``kept``: what it was told to keep and not to drop."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def put(self, name: str, descriptor: int, instead: str = "") -> None:
        self.kept.append(name)

    def drop(self, name: str) -> None:
        self.kept.remove(name)
