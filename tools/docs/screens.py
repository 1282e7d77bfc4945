"""Pictures of `nvc-py top`, `doctor` and the demo, as SVG: what the real programs print on the simulated machine.

Runs as root, where containers can be started. Elsewhere the pages show a line that says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tools.docs.made import ROOT, SCREENS

if TYPE_CHECKING:
    from tests.support.bed import Bed

#: rich's own, without the fonts that it takes from another host.
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


def typed(command: Sequence[str], columns: int, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints on a terminal. Raises CalledProcessError when it ends with another code than 0, 2 or 3."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **(environment or {})}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env) as process:
        os.close(theirs)
        parts = []
        with contextlib.suppress(OSError):  # EIO: the last writer has closed it
            while part := os.read(ours, 65536):
                parts.append(part)
        os.close(ours)
    if process.returncode not in (0, 2, 3):  # findings of the doctor
        raise subprocess.CalledProcessError(process.returncode, command, b"".join(parts))
    # Without the lines of nvc.base.progress, which erase themselves.
    return re.sub(r"\r\x1b\[2K[^\r\n\x1b]*(?=\r\x1b|$)|\r\x1b\[2K", "", b"".join(parts).decode().replace("\r\n", "\n"))


def picture(name: str, title: str, text: str, columns: int) -> None:
    console = Console(record=True, width=columns, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(text.rstrip("\n")))
    drawn = console.export_svg(title=title, theme=MONOKAI, code_format=_FORMAT, unique_id=name)
    SCREENS.mkdir(parents=True, exist_ok=True)
    (SCREENS / f"{name}.svg").write_text(drawn, encoding="utf-8")


#: The page that has them.
PAGE = """\
# What it looks like

Made with this site from the programs themselves, on the [simulated machine](simulated-machine.md).

## Three containers on one GPU

![nvc-py top](../screens/top.svg)

The columns are explained in the [glossary](../glossary.md#columns-of-nvc-py-top).

## A host that is checked

![nvc-py doctor](../screens/doctor.svg)

[Doctor](doctor.md) has every check.

## The demo

![make demo](../screens/demo.svg)
"""


def main() -> None:
    from tests.support.bed import Bed

    if os.geteuid() != 0:
        for name in ("top", "doctor", "demo"):
            picture(name, name, "This picture is made by `make docs` as root: containers are started for it.", 100)
        return
    picture("demo", "make demo", typed([sys.executable, "-m", "tools.demo"], 130), 130)
    bed = Bed()
    try:
        words = [bed.commands.nvc, f"--sim={bed.machine('h100x8')}", "doctor"]
        picture("doctor", "nvc-py doctor", typed(words, 130), 130)
        _top(bed)
    finally:
        for line in bed.close():
            print(f"docs: left behind: {line}", file=sys.stderr)


def _top(bed: Bed) -> None:
    """Three guarded containers that compute."""
    from tests.support.agentbed import Held, RunningAgent
    from tests.support.bed import gpu_env
    from tests.support.bundle import Container
    from tests.support.native import build
    from tests.support.served import served_machine
    from tests.support.wrapped import Wrapped

    with served_machine(bed) as name, RunningAgent(bed, name) as agent, contextlib.ExitStack() as stack:
        wrapped = Wrapped(bed, bed.runtime("runc", "hybrid"), agent.settings, machine=name)
        shares = {"train": "mem=40Gi,weight=60", "notebook": "mem=10Gi,weight=30", "batch": "mem=4Gi,cap=20%"}
        for who, share in shares.items():
            told = {"nvc.share": share, "nerdctl/namespace": "lab", "nerdctl/name": who}
            tree = bed.rootfs()
            shutil.copy(build("cuda_burn") / "cuda_burn", tree / "usr/bin/cuda_burn")
            container = Container(tree, ["cuda_burn", "600", "500000"], gpu_env("all"), annotations=told)
            identifier = hashlib.sha256(who.encode()).hexdigest()  # as an engine's
            stack.enter_context(held := Held(wrapped, container, identifier))
            assert held.line() == "started=1"
        time.sleep(5)  # a whole window of what the scheduler averages
        words = [bed.commands.nvc, f"--sim={agent.machine}", "top", "--once", f"--agent={agent.directory}/control"]
        picture("top", "nvc-py top", typed(words, 140), 140)


if __name__ == "__main__":
    main()
