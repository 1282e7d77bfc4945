"""Every key of [agent] counts, when the agent starts and when it reads its file again."""

from __future__ import annotations

import grp
import socket
import stat
import urllib.request
from pathlib import Path

import pytest

from nvc.base.errors import NvcError
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.lone_agent import agent, configure
from tests.support.loopback import free_address

pytestmark = pytest.mark.root


def reads(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
            return b"nvc_agent_info" in page.read()
    except OSError:
        return False


def test_the_directory_is_the_files(tmp_path: Path) -> None:
    # nvc-runtime looked where the file says, and the agent was elsewhere.
    configure(tmp_path)
    with agent(tmp_path) as control, Client(str(control)) as client:
        assert client.call("status")["policy"] == "weighted"


def test_reload_takes_the_group_and_the_address_of_metrics(tmp_path: Path) -> None:
    group = grp.getgrgid(1)
    first, second = free_address(), free_address()
    configure(tmp_path, 'group = "group-without-members"', f'metrics = "{first}"')
    with agent(tmp_path) as control, Client(str(control)) as client:
        assert stat.S_IMODE(control.stat().st_mode) == 0o600
        assert reads(first)
        configure(tmp_path, f'group = "{group.gr_name}"', f'metrics = "{second}"', "slots = 4")
        client.call("reload")
        found = control.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, group.gr_gid)
        assert leftovers.until(lambda: reads(second), seconds=30)
        assert not reads(first)
        # An address that cannot be had: told, and the one before stays.
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            configure(tmp_path, f'metrics = "127.0.0.1:{other.getsockname()[1]}"')
            client.call("reload")
            assert leftovers.until(lambda: "in use" in (tmp_path / "log").read_text(), seconds=30)
        assert reads(second)
        configure(tmp_path)
        client.call("reload")
        assert leftovers.until(lambda: not reads(second), seconds=30)
        configure(tmp_path, "slots = 0")
        with pytest.raises(NvcError, match=r"agent\.slots is not a number from 1 to 1000"):
            client.call("reload")


def test_an_address_in_use_is_told_and_had_later(tmp_path: Path) -> None:
    """It ended the agent at its start, and with it every guarded container's quota."""
    log = tmp_path / "log"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        configure(tmp_path, f'metrics = "127.0.0.1:{port}"')
        with agent(tmp_path) as control, Client(str(control)) as client:
            assert leftovers.until(lambda: "in use" in log.read_text(), seconds=30)
            assert client.call("status")["policy"] == "weighted"
            other.close()
            assert leftovers.until(lambda: reads(f"127.0.0.1:{port}"), seconds=30)
            assert leftovers.until(lambda: '"event":"metrics"' in log.read_text(), seconds=30)
            assert 1 == log.read_text().count("in use")
