"""Docker on a node that requires the guard: its ways to a GPU beside it, and a local user's link in a host path."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agentbed import RunningAgent
from tests.support.docker import Docker
from tests.support.required import LOGS, ONCE, SHARE, agent, bed, foreign, is_beyond, program, stranger
from tests.support.runtimes import find

__all__ = ["agent", "bed", "program", "stranger"]
pytestmark = pytest.mark.engines

ASK = ("-e", f"NVC_SHARE={SHARE}")
#: --gpus takes the hook of dockerd's PATH alone, a runtime what the container's variables ask for.
BY_HOOK, BY_RUNTIME = ("--gpus=all",), ("--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=all")
PIPES = "/tmp/nvidia-mps"


@pytest.fixture(scope="module")
def docker(agent: RunningAgent, program: Path) -> Iterator[Docker]:
    """dockerd on the agent's machine; its environment names a config.toml that requires the guard."""
    own = agent.bed
    etc, place = own.directory("etc"), own.directory("docker")
    (etc / "nvc").mkdir()
    real = json.dumps([find("runc")])
    rules = f'{agent.settings}[share]\nguard = "require"\n[nvidia-container-runtime]\nruntimes = {real}\n'
    (etc / "nvc/config.toml").write_text(rules)
    environment = {"NVC_SIM": agent.machine, "XDG_CONFIG_HOME": str(etc)}
    engine = Docker(own.token, place, [str(own.commands.directory)], environment, shares=True)
    engine.write_config()
    own.call(own.commands.nvc, "runtime", "configure", "--runtime=docker", f"--config={engine.config}", check=True)
    tree = own.rootfs()
    shutil.copy(program, tree / "usr/bin/rawalloc")
    try:
        engine.start()
        engine.import_image(tree)
        yield engine
    finally:
        engine.stop()


def test_gpus_alone_starts_nothing_where_the_guard_is_required(docker: Docker) -> None:
    """Attack (P1): only nvc-runtime looked, and ``docker run --gpus`` has runc behind the hook."""
    result = docker.run([*BY_HOOK, *ASK], ONCE)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "this node requires a guard for shares, and this container has none" in result.text


def test_the_runtime_has_the_guard(docker: Docker, agent: RunningAgent) -> None:
    before = len(agent.of("tenant"))
    result = docker.run([*BY_RUNTIME, *ASK], ONCE)

    assert (result.code, "failed=0 passed=0" in result.out) == (0, True), result.text
    assert len(agent.of("tenant")) == before + 1


@pytest.mark.parametrize("way", [BY_HOOK, BY_RUNTIME], ids=["gpus", "runtime"])
@pytest.mark.parametrize("kind", ["no rules, own listener", "no rules, the agent's listener", "a rule before them"])
def test_a_users_profile_that_claims_the_guard_starts_nothing(
    docker: Docker, agent: RunningAgent, stranger: Path, way: tuple[str, ...], kind: str
) -> None:
    """Attack (P3, H5): Docker 20.10 passes the rules on, without the listener that the profile names."""
    profile = docker.place / "seccomp.json"
    profile.write_text(json.dumps(foreign(kind, f"{agent.directory}/listen", str(stranger))))
    result = docker.run([*way, *ASK, f"--security-opt=seccomp={profile}"], ONCE)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    said = {BY_HOOK: "this node requires a guard for shares", BY_RUNTIME: "it announces calls to a listener already"}
    assert said[way] in result.text


def test_a_name_that_ends_in_c_starts_nothing(docker: Docker) -> None:
    """Attack: Docker passes the profile on, and the rule of "ioctl\\0x" took the place of the guard's."""
    profile = docker.place / "seccomp.json"
    profile.write_text(json.dumps(LOGS))
    result = docker.run([*BY_RUNTIME, *ASK, f"--security-opt=seccomp={profile}"], ONCE)

    assert not is_beyond(result), f"the whole GPU: {result.out}"
    assert (result.code != 0, result.out) == (True, ""), result.text
    assert "seccomp profile: " in result.text


@pytest.mark.parametrize("target", ["/etc", "etc", ""], ids=["link", "link below the driver root", "own directory"])
def test_a_users_pipe_directory_is_not_given(docker: Docker, agent: RunningAgent, target: str) -> None:
    """Attack (H1): a link of a local user's at /tmp/nvidia-mps gave every container the host's /etc, writable."""
    place = Path(agent.machine) / PIPES[1:]
    place.parent.mkdir(exist_ok=True)
    try:
        if target:
            place.symlink_to(Path(agent.machine) / target)
        else:
            place.mkdir()
            os.mknod(place / "control", 0o140666)
            os.chown(place / "control", 12345, 12345)
        os.chown(place, 12345, 12345, follow_symlinks=False)
        look = f"ls {PIPES}; grep -c ' {PIPES} ' /proc/self/mountinfo; true"
        result = docker.run(["--gpus=all"], ["/bin/sh", "-c", look])
    finally:
        place.unlink() if place.is_symlink() else shutil.rmtree(place)

    assert (result.code, result.out.split()) == (0, ["0"]), result.text
