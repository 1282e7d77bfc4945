"""Containers that need the guard, on a served machine with an agent; forged seccomp profiles."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvc.guard.filter import merge
from nvc.share import store
from tests.support.agentbed import RunningAgent, build_rawalloc
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.runtimes import OciRuntime, Result
from tests.support.served import served_machine
from tests.support.wrapped import Wrapped

NATIVE = "SCMP_ARCH_X86_64"
#: Four pieces are the share, two more are asked for: none may pass.
ONCE = ("rawalloc", "4", "1024", "once")
SHARE = "mem=4Gi"


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """One for all tests here, on a bed and a served machine of its own."""
    own = Bed()
    try:
        with served_machine(own) as name, RunningAgent(own, name) as running:
            yield running
    finally:
        left = own.close()
    assert left == [], "tests left this on the machine:\n" + "\n".join(left)


@pytest.fixture
def bed(agent: RunningAgent) -> Iterator[Bed]:
    """The agent's: what is left is looked at when it has ended."""
    yield agent.bed
    forget(agent.bed)


@pytest.fixture(scope="module")
def program(agent: RunningAgent) -> Path:
    return build_rawalloc(agent.bed.directory("program") / "rawalloc")


@pytest.fixture
def tree(bed: Bed, program: Path) -> Path:
    tree = bed.rootfs()
    shutil.copy(program, tree / "usr/bin/rawalloc")
    return tree


@pytest.fixture
def stranger(bed: Bed) -> Iterator[Path]:
    """A socket that is not the agent's, which takes every listener and keeps it."""
    place = bed.directory("stranger") / "listen"
    server, taken = socket.socket(socket.AF_UNIX), list[socket.socket]()
    server.bind(str(place))
    server.listen(8)

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(server.accept()[0])

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    yield place
    server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    for one in (server, *taken):
        one.close()


def rules(place: Path, agent: RunningAgent, guard: str) -> Path:
    """The node's config.toml."""
    config = place / "config.toml"
    config.write_text(f'{agent.settings}[share]\nguard = "{guard}"\n')
    return config


def behind(bed: Bed, runtime: OciRuntime, agent: RunningAgent, guard: str = "auto") -> Wrapped:
    return Wrapped(bed, runtime, f'{agent.settings}[share]\nguard = "{guard}"\n', machine=Path(agent.machine).name)


def seccomp(profile: dict[str, Any]) -> Callable[[Path], None]:
    """What an engine makes of a user's --security-opt seccomp=FILE."""

    def edit(bundle: Path) -> None:
        config = json.loads((bundle / "config.json").read_text())
        config["linux"]["seccomp"] = profile
        (bundle / "config.json").write_text(json.dumps(config))

    return edit


def with_hook(bed: Bed, agent: RunningAgent, tree: Path, config: Path, stage: str = "prestart") -> Container:
    """A container whose share comes from nvc-hook alone."""
    hook = bed.hook(stage, f"--config={config}", machine=Path(agent.machine).name)
    return Container(tree, ONCE, gpu_env("all"), {stage: [hook]}, annotations={"nvc.share": SHARE})


def of(agent: RunningAgent, event: str, container: str) -> list[dict[str, Any]]:
    """What the agent logged of one container."""
    return [one for one in agent.of(event) if one.get("container") == container]


def is_beyond(result: Result) -> bool:
    """Whether its program got more than its share."""
    return "passed=" in result.out and "passed=0" not in result.out


def forget(bed: Bed) -> None:
    for entry in store.entries()[0]:
        with entry:
            if bed.token in entry.record.container or bed.token in entry.record.rootfs:
                store.remove(entry.record.key)


#: Names that are no ioctl for Python, and that end at the NUL for a runtime's C library.
NUL = {"names": ["ioctl\0x", "mmap\0x"], "action": "SCMP_ACT_ALLOW"}
LOGS = {"defaultAction": "SCMP_ACT_LOG", "architectures": [NATIVE], "syscalls": [NUL]}
HOLLOW = {"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}
#: ALLOC of 48 bytes, by its whole number: libseccomp looks at it before masks.
PASS = {
    "names": ["ioctl"],
    "action": "SCMP_ACT_ALLOW",
    "args": [{"index": 1, "value": 0xC030462B, "op": "SCMP_CMP_EQ"}],
}


def foreign(kind: str, listen: str, elsewhere: str) -> dict[str, Any]:
    """A profile that says it is the guard's and is not."""
    whole = merge(None, listen, "nvc", NATIVE)
    hollow = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [NATIVE], "syscalls": [HOLLOW]}
    return {
        "no rules, own listener": {**hollow, "listenerPath": elsewhere, "listenerMetadata": "nvc:x"},
        "no rules, the agent's listener": {**hollow, "listenerPath": listen, "listenerMetadata": "nvc"},
        "all rules, own listener": {**whole, "listenerPath": elsewhere},
        "a rule before them": {**whole, "syscalls": [PASS, *whole["syscalls"]]},
        "one rule less": {**whole, "syscalls": [one for one in whole["syscalls"] if "43" not in str(one["args"])]},
    }[kind]
