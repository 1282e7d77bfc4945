"""What a command waits for is on a terminal's standard error once it takes more than two seconds, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.base import progress
from nvc.share import store
from nvc.share.limits import Limits
from nvc.share.model import ResolvedGpu
from nvc.share.store import StoredShare
from nvc.sim import MACHINE_FILE
from nvc.sim.create import create
from tests.support import leftovers
from tests.support.agent_status import UUIDS
from tests.support.fake_agent import FakeAgent
from tests.support.native import build

ROOT = Path(__file__).parents[3]
ERASE = "\r\x1b[2K"
#: Longer than SILENCE_S, also where this process gets the processor late.
LONG_S = 4.0


class Ran:
    """``nvc-py`` with a terminal, or a pipe, as standard error. meanwhile: called once ``word`` is there."""

    def __init__(
        self,
        *words: str,
        terminal: bool = True,
        module: str = "nvc.__main__",
        word: str = "",
        meanwhile: Callable[[], object] = lambda: None,
        **environment: str,
    ) -> None:
        ours, theirs = pty.openpty() if terminal else os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {module} import run; run()", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), **environment},
            text=True,
        )
        os.close(theirs)
        self.err = ""
        try:
            while more := os.read(ours, 65536):
                self.err += more.decode(errors="replace")
                if word and word in self.err:
                    meanwhile()
                    word = ""
        except OSError:
            pass  # a pseudo terminal's end
        os.close(ours)
        self.out, _ = process.communicate(timeout=60)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A machine whose NVML needs LONG_S to start."""
    build()
    root = create(str(tmp_path_factory.mktemp("machine") / "h200"), "h200").root
    description = Path(root, MACHINE_FILE.lstrip("/"))
    fault = f"\nfault=nvmlInit slow {LONG_S * 1000:.0f}\nnodes="
    description.write_text(description.read_text().replace("\nnodes=", fault))
    return root


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("info",), "nvc-py: asking the driver, "),
        (("cdi", "generate"), "nvc-py: asking the driver, "),
        (("doctor", "--only=driver"), "nvc-py: looking at this host: check "),
    ],
)
def test_a_cold_driver(slow: str, words: tuple[str, ...], said: str) -> None:
    ran = Ran("--no-cache", f"--sim={slow}", *words)
    assert f"{ERASE}{said}" in ran.err
    assert re.search(r" \([2-9] s\)", ran.err)
    assert ran.err.rpartition(ERASE)[2].count("nvc-py: asking") == 0, "nothing of it is left on the screen"


@pytest.mark.parametrize(
    "words", [("info",), ("info", "--json"), ("--json", "info"), ("doctor", "--only=driver", "--json")]
)
def test_nothing_without_a_terminal_or_with_json(slow: str, words: tuple[str, ...]) -> None:
    ran = Ran("--no-cache", f"--sim={slow}", *words, terminal="--json" in words)
    assert "asking the driver" not in ran.err and "looking at" not in ran.err and ERASE not in ran.err
    assert "h200" in ran.out + ran.err


def test_a_terminal_that_erases_nothing_gets_a_line(slow: str) -> None:
    ran = Ran("--no-cache", f"--sim={slow}", "info", TERM="dumb")
    assert ran.err.count("asking the driver") == 1 and "\x1b" not in ran.err


def test_nvidia_container_cli_is_read_by_programs(slow: str, tmp_path: Path) -> None:
    link = tmp_path / "nvidia-container-cli"
    link.write_text(f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
                    "from nvc.__main__ import run\nrun()\n")  # fmt: skip
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, link, "--no-cache", f"--sim={slow}", "info"], stderr=theirs, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    os.close(theirs)
    assert b"asking the driver" not in os.read(ours, 65536)
    os.close(ours)


def test_nvidia_ctk(slow: str) -> None:
    assert "nvidia-ctk: asking the driver" in Ran("cdi", "generate", module="hook.ctk", NVC_SIM=slow).err
    assert "asking" not in Ran("--quiet", "cdi", "generate", module="hook.ctk", NVC_SIM=slow).err


@pytest.fixture
def directory(tmp_path: Path) -> str:
    path = str(tmp_path / "nvc/share")
    limits = Limits((ResolvedGpu(UUIDS[1], 1, 10 << 30, 500, 20),), driver="580.1", container="c1")
    store.create(StoredShare("c1", "c1", os.getpid(), store.start_time(os.getpid())), limits, b"", directory=path)
    return path


def test_an_agent_that_moves_memory(tmp_path: Path, directory: str) -> None:
    def suspend(_: dict[str, Any]) -> Iterator[dict[str, Any]]:
        time.sleep(LONG_S)
        yield {"ok": True, "memory": [1 << 30], "processes": 1, "seconds": LONG_S}

    socket = str(tmp_path / "control")
    with FakeAgent(socket, suspend=suspend):
        ran = Ran("share", f"--store={directory}", "suspend", "c1", f"--agent={socket}")
    assert "nvc-py: suspending c1: the agent has not answered yet (" in ran.err
    assert "c1 is suspended" in ran.out


def test_a_lock_of_another_process(tmp_path: Path) -> None:
    target = tmp_path / "daemon.json"
    (tmp_path / ".daemon.json.nvc-new").touch(0o600)
    said = f"nvc-py: another process writes {target} ("
    with open(tmp_path / ".daemon.json.nvc-new") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran = Ran(
            *("runtime", "configure", "--runtime=docker", f"--config={target}"),
            word=said,
            meanwhile=lambda: fcntl.flock(held, fcntl.LOCK_UN),
        )
    assert said in ran.err
    assert f"{ERASE}wrote {target}" in ran.err, "nothing of it is left on the screen"


def test_waits_inside_others_are_one(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_program", "nvc-py")
    monkeypatch.setattr(progress, "SILENCE_S", 0.05)
    monkeypatch.setattr(progress, "EACH_S", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    with progress.waiting("one"):
        assert leftovers.until(lambda: "one (" in progress._drawn, seconds=20)
        with progress.waiting("two\x1b"):
            assert leftovers.until(lambda: "two? (" in progress._drawn, seconds=20)
    time.sleep(0.1)
    monkeypatch.setattr(progress, "SILENCE_S", 50.0)
    with progress.waiting("short"):
        pass
    err = capfd.readouterr().err
    assert re.search(rf"{re.escape(ERASE)}nvc-py: one \(\d+ s\)", err) and re.search(
        r"nvc-py: one: two\? \(\d+ s\)", err
    )
    assert err.endswith(ERASE) and "short" not in err
