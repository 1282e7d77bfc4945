"""Access to the agent's control socket: root; members of the group, for what only reads; no other user."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nvc.agent.control import ControlSocket
from nvc.agent.journal import Journal
from nvc.agent.peer import Peer
from nvc.share.protocol import VERBS

pytestmark = pytest.mark.root

USER, GROUP, OTHER = 65534, 64242, 64243
#: Of the verbs, with fields that they take.
REQUESTS: dict[str, dict[str, object]] = {
    "status": {},
    "events": {},
    "set": {"container": "c", "spec": "mem=1Gi"},
    "pause": {"container": "c"},
    "resume": {"container": "c"},
    "policy": {"policy": "soft"},
    "hint": {"container": "c", "word": "soon"},
    "suspend": {"container": "c"},
    "usage": {},
    "attach": {"pid": 1},
    "detach": {"pid": 1},
    "reload": {},
    "register": {"container": "c", "bundle": "/b", "device": 1, "inode": 2},
    "bind": {"pid": 1},
    "fits": {},
    "configure": {},
}
#: Its text, not its path: other users cannot read the checkout.
CALLER = (Path(__file__).parent / "programs/send_line.py").read_text()


class Bench:
    """A socket with open permissions, so that only the peer's credentials decide."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.chmod(0o711)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(place / "socket"))
        self.server.listen(64)
        (place / "socket").chmod(0o666)
        self.events: list[dict[str, Any]] = []
        self.journal = Journal(-1)
        self.journal.listen(self.events.append)

    async def say(self, text: str, uid: int, gid: int, groups: Sequence[int]) -> str:
        """As this user."""
        made = await asyncio.create_subprocess_exec(
            *(os.path.realpath(sys.executable), "-IS", "-c", CALLER, text),
            cwd=self.place,
            stdout=asyncio.subprocess.PIPE,
            user=uid,
            group=gid,
            extra_groups=groups,
        )
        out, _ = await asyncio.wait_for(made.communicate(), 20)
        return out.decode()


def serve(serving: Awaitable[None], act: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        task = asyncio.ensure_future(serving)
        try:
            await act()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return run


def may(bench: Bench, group: int, uid: int, gid: int, groups: Sequence[int]) -> Mapping[str, bool]:
    """Verb -> whether it was served. Everything else is a refusal for want of rights."""
    found = {}

    async def served(request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        return {"uid": peer.uid}

    async def act() -> None:
        for verb, fields in REQUESTS.items():
            line = json.dumps({"verb": verb, **fields}) + "\n"
            reply = json.loads(await bench.say(line, uid, gid, groups))
            found[verb] = reply["ok"]
            if not reply["ok"]:
                assert reply["stage"] == "permission error", reply
                assert f"not for user {uid}" in reply["message"]
            elif verb != "events":
                assert reply["uid"] == uid, "as the kernel says, not the caller"

    async def run() -> None:
        handlers = {verb: served for verb in VERBS if verb != "events"}
        control = ControlSocket(bench.server, handlers, bench.journal, lambda: group)
        await serve(control.serve(), act)()

    asyncio.run(run())
    return found


def test_every_verb_is_asked_here() -> None:
    assert set(REQUESTS) == set(VERBS)


def test_root_may_say_everything(tmp_path: Path) -> None:
    assert set(may(Bench(tmp_path), GROUP, 0, 0, []).values()) == {True}


@pytest.mark.parametrize(("gid", "groups"), [(GROUP, []), (OTHER, [GROUP])], ids=["its group", "a group of its"])
def test_a_member_may_say_what_only_reads(tmp_path: Path, gid: int, groups: list[int]) -> None:
    found = may(Bench(tmp_path), GROUP, USER, gid, groups)
    assert {verb for verb, good in found.items() if good} == {"status", "events"}


@pytest.mark.parametrize("group", [GROUP, -1], ids=["a group", "no such group"])
def test_an_ordinary_user_may_say_nothing(tmp_path: Path, group: int) -> None:
    assert set(may(Bench(tmp_path), group, USER, OTHER, []).values()) == {False}
