"""The package is replaced under guarded containers that work: their guards serve on, new containers get the new one."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvc.agent.status import AgentStatus, ask
from nvc.share.protocol import Client
from tests.support import leftovers
from tests.support.acceptors import acceptor
from tests.support.agent_tenants import AgentTenant, RunningAgent
from tests.support.agentbed import build_rawalloc
from tests.support.guarded import build_launcher
from tests.support.native import CHECKOUT, build
from tests.support.simgpu import DRIVER, MIB, UUID, SimGpu, make_machine, with_gpu
from tests.support.spoken import Silent, Spoken
from tests.system.test_guarded_smoke import environment

pytestmark = pytest.mark.root

#: Of 50 containers, these have a program that allocates up to its quota and beyond; in one, a program is started later.
LOADED = 49
PIECE = 4
#: native/Makefile: of next-supervisor, and of other-supervisor, whose pages are of version 2.
VERSIONS = {"next": "999.1", "other": "999.2"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_rawalloc(directory / "rawalloc")
    return directory


def install(place: Path) -> Path:
    """This version's package."""
    for package in ("nvc", "hook", "rpc"):
        shutil.copytree(CHECKOUT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    for program in ("nvc-monitor", "nvc-supervisor", "nvc-prober"):
        shutil.copy2(build() / program, place / "nvc/linux")
    for extension in build().glob("*.abi3.so"):
        shutil.copy2(extension, place / "nvc/linux")
    return place


def replace(place: Path, kind: str) -> None:
    """Install another version, file by file, as a package manager does: the new one has the old one's name."""
    for name in ("monitor", "supervisor", "prober"):
        made = build(f"{kind}-{name}") / f"{kind}-{name}" if kind == "other" or name == "supervisor" else None
        shutil.copy2(made or build() / f"nvc-{name}", place / "new")
        os.rename(place / "new", place / f"nvc/linux/nvc-{name}")
    for path, old, new in (
        (place / "nvc/__init__.py", r"(?m)^__version__ = .*$", f'__version__ = "{VERSIONS[kind]}"'),
        *([(place / "nvc/guard/pages.py", "0x434C564E, 1$", "0x434C564E, 2")] if kind == "other" else []),
    ):
        text, count = re.subn(old, new, path.read_text(), flags=re.M)
        assert count == 1, path
        (place / "new").write_text(text)
        os.rename(place / "new", path)


class Node:
    """50 containers under load, and the agent."""

    def __init__(self, gpu: SimGpu, machine: Path, stack: contextlib.ExitStack) -> None:
        build("nvc-monitor", "nvc-supervisor", "nvc-prober")
        self.gpu, self.machine, self.stack = gpu, machine, stack
        self.installed = install(gpu.work / "installed")
        words = gpu.work, UUID, gpu.nodes(), DRIVER, build_launcher(gpu.work), environment(gpu), self.installed
        self.agent = stack.enter_context(RunningAgent(*words))
        self.tenants = [self.agent.tenant(memory=PIECE * MIB) for _ in range(LOADED + 1)]
        self.programs = [self.program(tenant, "eof") for tenant in self.tenants[:LOADED]]
        self.idle = self.program(self.tenants[-1], "0")
        assert [one.line() for one in self.programs] == ["started"] * LOADED
        assert self.idle.line() == "held"

    def program(self, tenant: AgentTenant, how: str) -> Spoken:
        command = tenant.wrap([str(self.machine / "rawalloc"), "1", str(PIECE), how])
        return self.stack.enter_context(Spoken(["nice", *command], environment(self.gpu), seconds=60))

    def status(self) -> AgentStatus:
        with Client(f"{self.agent.directory}/control", 60.0) as client:
            return ask(client)

    def builds(self) -> dict[str, str]:
        return {one.container: one.build for one in self.status().tenants}

    def nvc(self, *words: str) -> str:
        """What the installed command prints."""
        done = subprocess.run(
            [sys.executable, "-m", "nvc", *words],
            cwd=self.installed,
            env={**environment(self.gpu), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.stdout

    def listed(self) -> dict[str, str]:
        """Container -> the version that `share ls` prints."""
        told = self.nvc("share", "--store", self.agent.store, "ls", "--agent", f"{self.agent.directory}/control")
        head, *rows = told.splitlines()
        at = head.index("GUARD")
        return {row.split()[0]: row[at:].split()[0] for row in rows}

    def named_by_doctor(self) -> set[str]:
        """The containers that it names because of their guard's version."""
        assert ctypes.CDLL(None).mount(b"none", b"/run", b"tmpfs", 0, None) == 0  # in a namespace of the test
        Path("/run/nvc").mkdir()
        Path("/run/nvc/agent").symlink_to(self.agent.directory)
        found = json.loads(self.nvc(f"--sim={self.machine}", "doctor", "--only", "share", "--json"))
        told = [one["what"] for one in found["findings"] if one["check"] == "share-guards"]
        return {re.findall(r"container (\S+):", text)[0] for text in told}


@pytest.mark.parametrize("kind", ["next", "other"])
def test_fifty_containers_lose_no_call_while_the_package_is_replaced(machine: Path, kind: str) -> None:
    def inside(gpu: SimGpu) -> None:
        with contextlib.ExitStack() as stack:
            upgrade(Node(gpu, machine, stack), kind)

    with_gpu(machine, inside)


def upgrade(node: Node, kind: str) -> None:
    before = node.builds()
    old, new = set(before.values()).pop(), VERSIONS[kind]
    assert (len(before), old == new) == (LOADED + 1, False)
    first, _ = acceptor(node.agent.directory)

    replace(node.installed, kind)
    node.agent.kill()
    assert leftovers.until(lambda: acceptor(node.agent.directory)[0] not in (0, first), seconds=20)

    assert node.status().version == new
    # New processes in a container of before: they have its quota, and no other one beside it.
    assert said(node.program(node.tenants[-1], "once").line()) == {"failed": 1, "passed": 0}, "the first one holds it"
    assert said(end(node.idle)) == {"failed": 0, "passed": 0}
    assert said(node.program(node.tenants[-1], "once").line()) == {"failed": 0, "passed": 0}
    # A new container.
    node.tenants.append(node.agent.tenant(memory=PIECE * MIB))
    late = node.program(node.tenants[-1], "0")
    try:
        assert late.line() == "held"
    except Silent:
        raise AssertionError(node.agent.log.read_text()[-4000:]) from None
    expected = {**dict.fromkeys((one.name for one in node.tenants[:-2]), old), node.tenants[-1].name: new}
    assert leftovers.until(lambda: node.builds() == expected, seconds=30), node.builds()
    assert node.listed().items() >= expected.items()
    assert node.named_by_doctor() == set(expected) - {node.tenants[-1].name}
    assert said(end(late)) == {"failed": 0, "passed": 0}
    for program in node.programs:
        assert said(end(program)) == {"failed": 0, "passed": 0}
    assert leftovers.until(lambda: not node.builds(), seconds=60), node.builds()


def said(line: str) -> dict[str, int]:
    found = dict(word.split("=") for word in line.split())
    return {name: int(found[name]) for name in ("failed", "passed")}


def end(program: Spoken) -> str:
    assert program.process.stdin is not None
    program.process.stdin.close()
    return program.line()
