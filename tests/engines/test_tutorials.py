"""docs/user/tutorials: every command of two-tenants.md, notebooks.md and service.md, and what it prints, with Podman.

The machine is simulated. What differs from a reader's shell: ``podman`` has the options that this kind of machine
needs, and the image is a root file system with this machine's Python under the image's name.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cgroupview
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.cgroupview import named
from tests.support.enforced import Node
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.required import agent, bed
from tests.support.runtimes import find

__all__ = ["agent", "bed"]
pytestmark = pytest.mark.engines
PAGES = Path(__file__).parents[2] / "docs/user/tutorials"
IMAGE = "docker.io/library/python:3.12-slim"
#: What a page runs, and what it shows of that.
_BLOCK = re.compile(r"^<!-- run by [^\n]*-->\n```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_PODMAN = """\
#!/bin/sh
if [ "$1" = run ]; then
    shift
    exec /usr/bin/podman run --pids-limit=-1 --network=none --log-driver=k8s-file {parent} "$@"
fi
exec /usr/bin/podman "$@"
"""
#: The agent of the test is not where the commands look for one.
_NVC = """\
#!/bin/sh
[ "$1 $2" = "share check" ] && exec {nvc} --sim={machine} "$@"
[ "$1" = share ] && {{ word=$2; shift 2; exec {nvc} share "$word" --agent={agent}/control "$@"; }}
word=$1; shift; exec {nvc} "$word" --agent={agent}/control "$@"
"""
_UNTIL = Path(__file__).parents[1] / "support/programs/until_it_prints.py"


@pytest.fixture(scope="module")
def tree(agent: RunningAgent) -> Path:
    """A root file system with this machine's Python."""
    made = agent.bed.rootfs()
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    skipped = shutil.ignore_patterns("test", "dist-packages", "config-*", "__pycache__", "idlelib", "ensurepip")
    shutil.copytree(library, made / str(library)[1:], ignore=skipped, dirs_exist_ok=True)
    modules = [str(path) for path in library.glob("lib-dynload/_ctypes.*.so")]
    said = subprocess.run(["ldd", str(program), *modules], capture_output=True, text=True, check=True).stdout
    for name in {*re.findall(r"^\s+(?:\S+ => )?(/\S+) \(", said, re.MULTILINE)}:
        target = made / name[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(name, target)
    (made / str(program)[1:]).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, made / str(program)[1:])
    (made / "usr/bin/python3").unlink(missing_ok=True)
    (made / "usr/bin/python3").symlink_to(program)
    return made


class Reader:
    """A root shell on a machine with GPUs, an agent and Podman, set up as the page says."""

    def __init__(self, running: RunningAgent, tree: Path) -> None:
        self.own = running.bed
        view = named("hybrid") or named("v2")
        assert view is not None
        self.etc, self.bin = self.own.directory("etc"), self.own.directory("bin")
        node = Node(running, tree, self.etc, "", self.own.token)
        env = {**node.environment, "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        self.box = PodmanBox(self.own.token, "runc", view, self.own.directory("podman"), env)
        self.box.prepare()
        self.parent = f"{self.own.token}-tutorial"
        hook = node.program(self.bin, "nvc-hook", self.own.commands.hook)
        runtime = node.program(self.bin, "nvc-runtime", self.own.commands.runtime)
        nvc = node.program(self.own.directory("real"), "nvc-py", self.own.commands.nvc)
        (self.bin / "nvc-py").write_text(_NVC.format(nvc=nvc, agent=running.directory, machine=running.machine))
        (self.bin / "podman").write_text(_PODMAN.format(parent=f"--cgroup-parent=/{self.parent}"))
        for name in ("nvc-py", "podman"):
            (self.bin / name).chmod(0o755)
        self.config = f"{running.settings}[nvidia-container-runtime]\nruntimes = {json.dumps([find('runc')])}\n"
        (self.etc / "nvc").mkdir()
        paths = f"--hook-path={hook} --runtime-path={runtime}"
        change = quoted(["--change", "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin"])
        self.setup = [
            f"export PATH={self.bin}:$PATH; cd {self.own.directory('work')}; cp {PAGES}/gpu.py .",
            f"mkdir -p /etc/nvc && cp {self.etc}/nvc/config.toml /etc/nvc/config.toml",
            f"{self.own.commands.nvc} runtime configure --runtime=podman {paths} >/dev/null 2>&1",
            f"tar -C {tree} -c . | /usr/bin/podman import -q {change} - {IMAGE} >/dev/null",
        ]

    def follows(self, page: str) -> str:
        """Type every block of the page; what was printed. Each has to print what the page shows."""
        text, lines = (PAGES / page).read_text(), [*self.setup]
        rules = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (self.etc / "nvc/config.toml").write_text("".join([self.config, *rules]))
        for number, (block, shown) in enumerate(_BLOCK.findall(text)):
            typed, expected = (self.own.place / f"{page}-{number}.{kind}" for kind in ("sh", "txt"))
            typed.write_text(block)
            expected.write_text(shown)
            lines.append(f"{sys.executable} {_UNTIL} {typed} {expected}" if shown else f"sh -e {typed} 2>&1")
        ended = "rc=$?; podman rm --force --all --time 0 >/dev/null 2>&1; exit $rc"
        result = self.box.script("", "( set -e\n" + "\n".join(lines) + f"\n); {ended}")
        assert result.code == 0, result.text
        return result.out

    def clean(self) -> None:
        self.box.clean()
        cgroupview.remove(self.parent)


@pytest.fixture
def reader(agent: RunningAgent, tree: Path, bed: Bed) -> Iterator[Reader]:
    made = Reader(agent, tree)
    yield made
    made.clean()


@pytest.mark.parametrize("page", ["two-tenants.md", "notebooks.md", "service.md"])
def test_every_command_of_a_page(reader: Reader, page: str) -> None:
    assert len(_BLOCK.findall((PAGES / page).read_text())) >= 3

    reader.follows(page)
