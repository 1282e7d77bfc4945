"""An agent of its own, as an operator starts it by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import leftovers

MAIN = "import sys; from nvc.cli.main import main; sys.exit(main(sys.argv[1:], 'nvc-py'))"


@contextmanager
def agent(place: Path, *before: str) -> Iterator[Path]:
    """One that gets nothing but its file, config.toml in ``place``; what it says is beside that, in "log".

    before: what its command line begins with. Its control socket.
    """
    control = place / "run/agent/control"
    words = [
        *before,
        sys.executable,
        "-c",
        MAIN,
        "agent",
        "--config",
        str(place / "config.toml"),
        "--store",
        str(place / "share"),
    ]
    log = place / "log"
    (place / "run").mkdir(exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(words, stderr=file)
    try:
        assert leftovers.until(lambda: '"ready"' in log.read_text() or process.poll() is not None, seconds=40)
        assert process.poll() is None, log.read_text()
        yield control
    finally:
        process.terminate()
        process.wait(20)


def configure(place: Path, *lines: str) -> None:
    """Write its file: keys of [agent], and that its sockets are in ``place``."""
    text = "\n".join(["[agent]", f'directory = "{place}/run/agent"', *lines, ""])
    (place / "config.toml").write_text(text)
