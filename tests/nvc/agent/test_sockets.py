"""The agent's control socket in front of callers that are slow, wrong, or too many."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import nvc
from nvc.agent.control import CONNECTIONS, ControlSocket
from nvc.agent.journal import Journal
from nvc.agent.peer import Peer
from nvc.base.errors import InputError
from nvc.share import protocol

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 0.2


class Told:
    """A journal's events."""

    def __init__(self) -> None:
        self.journal = Journal(-1)
        self.events: list[dict[str, Any]] = []
        self.journal.listen(self.events.append)


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen(512)
    return made


def with_control(path: Path, told: Told, act: Callable[[], Awaitable[None]], mode: int = 0o600) -> None:
    async def status(request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        return {"uid": peer.uid}

    async def pause(request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        raise InputError("no container", hint="there are: none")

    async def policy(request: dict[str, Any], peer: Peer) -> dict[str, Any]:
        raise ZeroDivisionError("by mistake")

    async def run() -> None:
        handlers = {"status": status, "pause": pause, "policy": policy}
        server = ControlSocket(listening(path), handlers, told.journal, lambda: -1, SECONDS)
        path.chmod(mode)
        task = asyncio.ensure_future(server.serve())
        try:
            await asyncio.wait_for(act(), 20)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


async def ask(path: Path, data: bytes, *, end: bool = False) -> list[dict[str, Any]]:
    """What comes back until the agent closes or has answered."""
    reader, writer = await asyncio.open_unix_connection(str(path), limit=4 << 20)
    writer.write(data)
    if end:
        writer.write_eof()
    lines = []
    try:
        while line := await asyncio.wait_for(reader.readline(), 5):
            lines.append(json.loads(line))
            if not end:
                break
    except ConnectionError:
        pass
    writer.close()
    return lines


@pytest.mark.root
def test_requests_are_answered_in_order_and_mistakes_end_nothing(tmp_path: Path) -> None:
    told, path = Told(), tmp_path / "control"

    async def act() -> None:
        lines = [
            b'{"verb":"status"}',
            b"nonsense",
            b'{"verb":"pause","container":"a"}',
            b'{"verb":"policy","policy":"x"}',
        ]
        found = await ask(path, b"\n".join([*lines, b'{"verb":"status"}', b""]), end=True)
        assert [one["ok"] for one in found] == [True, False, False, False, True]
        assert found[2] == {"ok": False, "stage": "input error", "message": "no container", "hint": "there are: none"}
        assert "ZeroDivisionError" in found[3]["message"]

    with_control(path, told, act)
    assert [event["event"] for event in told.events] == ["internal-error"]


@pytest.mark.root
@pytest.mark.parametrize("data", [b"x" * (protocol.LIMIT + 70000), b'{"verb":"sta'], ids=["huge", "half"])
def test_a_line_without_an_end_ends_its_connection_only(tmp_path: Path, data: bytes) -> None:
    told, path = Told(), tmp_path / "control"

    async def act() -> None:
        found = await ask(path, data)
        assert found in ([], [found[0]] if found else [])
        assert (await ask(path, b'{"verb":"status"}\n'))[0]["ok"] is True

    with_control(path, told, act)
    assert [event["event"] for event in told.events] == ["warning"]


@pytest.mark.root
def test_many_connections_are_a_limit_and_no_end(tmp_path: Path) -> None:
    told, path = Told(), tmp_path / "control"

    async def act() -> None:
        held = [await asyncio.open_unix_connection(str(path)) for _ in range(CONNECTIONS)]
        await asyncio.sleep(0.05)
        assert await ask(path, b'{"verb":"status"}\n') == []
        for _, writer in held:
            writer.close()
        for _ in range(100):
            if await ask(path, b'{"verb":"status"}\n'):
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("no client is served any more")

    with_control(path, told, act)


@pytest.mark.root
def test_other_users_cannot_keep_root_out(tmp_path: Path) -> None:
    # Members of the group may connect; one with all connections, that sent nothing, had the socket to itself.
    told, path = Told(), tmp_path / "control"
    holder = (PROGRAMS / "hold_connections.py").read_text()  # not its path, which the other user cannot read

    async def act() -> None:
        made = await asyncio.create_subprocess_exec(
            *(os.path.realpath(sys.executable), "-IS", "-c", holder, str(2 * CONNECTIONS)),
            cwd=tmp_path,
            user=65534,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert made.stdout is not None
        assert await made.stdout.readline() == b"held\n"
        try:
            assert (await ask(path, b'{"verb":"status"}\n'))[0]["uid"] == 0
        finally:
            await made.communicate(b"")

    tmp_path.chmod(0o711)
    with_control(path, told, act, mode=0o666)
    # On a busy machine the other user's program ends without having read what its connections were told.
    messages = [event["message"] for event in told.events if "does not read" not in event["message"]]
    assert messages == [f"control: {CONNECTIONS} connections of others than root"]


@pytest.mark.root
@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "has said all"])
def test_a_client_that_does_not_read_answers_is_disconnected(tmp_path: Path, ends: bool) -> None:
    told, path = Told(), tmp_path / "control"

    async def act() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            await asyncio.sleep(0.05)
            before = len(os.listdir("/proc/self/fd"))
            client.setblocking(False)
            # More than the socket holds, and with ``ends`` less than the agent waits for.
            wanted = b'{"verb":"policy","policy":"x"}\n' * (1600 if ends else 20000)
            try:
                await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(client, wanted), 5)
            except (TimeoutError, OSError):
                pass
            if ends:
                client.shutdown(socket.SHUT_WR)
            for _ in range(200):
                if len(os.listdir("/proc/self/fd")) < before:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("its connection stays")

    with_control(path, told, act)


@pytest.mark.root
def test_between_two_lines_it_is_the_turn_of_others(tmp_path: Path) -> None:
    # Lines that had come together were answered in one go: up to seconds in which no container was admitted.
    told, path = Told(), tmp_path / "control"
    lines = 2000

    async def act() -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"\n" * lines)
        turns = answers = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        while answers < lines:
            answers += (await asyncio.wait_for(reader.read(65536), 5)).count(b"\n")
        task.cancel()
        writer.close()
        assert turns >= lines

    with_control(path, told, act)


@pytest.mark.root
@pytest.mark.parametrize("python", [sys.executable, "python3.13", "python3.14"], ids=["this", "3.13", "3.14"])
def test_the_sockets_name_stays(tmp_path: Path, python: str) -> None:
    # systemd's socket unit made it. From 3.13 on asyncio removes what it served, unless it is told not to.
    if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode if shutil.which(python) else 1:
        pytest.skip(f"no {python} here")
    library = Path(nvc.__file__).parents[1]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([python, PROGRAMS / "serve_a_moment.py", str(tmp_path / "control")], env=environment, check=True)
    assert (tmp_path / "control").is_socket()
