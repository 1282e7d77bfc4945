"""Where ``top`` looks: the agent, and beside it or without it the files of the preloaded library."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nvc.agent.status import AgentStatus, ask
from nvc.agent.view import Seen, collect, gauged, rated
from nvc.base.errors import NvcError, PrivilegeError
from nvc.cli.share import agent as share_agent
from nvc.cli.share import rows as share_rows
from nvc.linux.process import process_name
from nvc.share.protocol import Client, NoAgent, NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nvc.cli.top.gauges import Gauges
    from nvc.share.view import ShareRow

#: Seconds for the agent's answer: a user is looking at the screen.
AGENT_TIMEOUT_S = 2.0


class Source:
    """Looks again and again; an agent that goes away is said, and asked again at the next look.

    agent: path of its control socket. store: directory of the shares' files. inventory: UUID -> (minor, bytes) of this
    machine's GPUs, asked once, when a GPU is not known otherwise. gauges: asked at each look. named: by --agent, so
    that the agent is expected to be there.
    """

    def __init__(
        self,
        agent: str,
        store: str,
        inventory: Callable[[], Mapping[str, tuple[int, int]]],
        gauges: Gauges | None = None,
        *,
        named: bool = False,
    ) -> None:
        self._agent, self._named = agent, named
        self._store = store
        self._inventory = inventory
        self._gauges = gauges
        self._facts: Mapping[str, tuple[int, int]] | None = None
        self._before: Seen | None = None
        self._answered = 0.0
        #: Why nothing at all could be seen at the last look.
        self.failure: NvcError | None = None
        #: Why the agent, which is there or named by --agent, gave no status at the last look: what was seen is not all.
        self.silent: NvcError | None = None

    @property
    def is_settled(self) -> bool:
        """Whether NVML has answered, or will not."""
        return self._gauges is None or self._gauges.is_settled

    def look(self, *, once: bool = False) -> Seen:
        """What there is now. Raises nothing: what could not be had is in its problems. once: there is no later look."""
        problems: list[str] = []
        if self._gauges is not None:
            self._gauges.ask()  # NVML answers while the agent does
        status, error = self._ask()
        self.silent = share_agent.missed(error, self._agent, named=self._named) if error is not None else None
        if error is not None:
            problems.append(self._about_agent(self.silent or error))
        rows: list[ShareRow] = []
        store_error: NvcError | None = None
        try:
            rows, warnings = share_rows.of_store(self._store, pids=True)
            problems += warnings
        except NvcError as problem:
            store_error = problem
            if status is None:
                problems.append(str(problem))
        self.failure = store_error if status is None else None
        now = time.time()
        known = {gpu.uuid for gpu in status.gpus} if status is not None else set()
        facts = self._gpus() if any(row.gpu not in known for row in rows) else {}
        seen = rated(
            collect(
                status or self._away(),
                rows,
                now,
                inventory=facts,
                name=process_name,
                problems=tuple(filter(None, problems)),
                silent=_why(self.silent),
            ),
            self._before,
        )
        if self._gauges is not None and seen.gpus:
            seen = gauged(seen, self._gauges.read(once=once))
        self._before = seen
        if status is not None:
            self._answered = now
        return seen

    def _ask(self) -> tuple[AgentStatus | None, NvcError | None]:
        try:
            with Client(self._agent, AGENT_TIMEOUT_S) as client:
                return ask(client), None
        except NvcError as error:
            return None, error

    def _away(self) -> AgentStatus:
        """Without an agent: what its tenants' supervisors publish."""
        return AgentStatus("", "", (), share_agent.away(self._agent))

    def _about_agent(self, error: NvcError) -> str:
        if self._answered and isinstance(error, NoAgent):
            gone = time.strftime("%H:%M:%S", time.localtime(self._answered))
            return f"the agent went away at {gone}, trying again: {error.message}"
        if self.silent is None:
            return ""  # many hosts have none, and the heading says which source this is
        if isinstance(error, PrivilegeError):
            return f"{error.message} ({error.hint})"
        return f"{error.message} ({error.hint})" if error.hint else error.message

    def _gpus(self) -> Mapping[str, tuple[int, int]]:
        if self._facts is None:
            try:
                self._facts = self._inventory()
            except (NvcError, OSError):
                self._facts = {}  # sizes of GPUs are not said then
        return self._facts


def _why(error: NvcError | None) -> str:
    """For the heading: what an agent that is there does instead of giving its status."""
    if error is None or isinstance(error, NoAgent):
        return ""
    if isinstance(error, PrivilegeError):
        return "refuses this user"
    return "does not answer" if isinstance(error, NoAnswer) else "gave no status"
