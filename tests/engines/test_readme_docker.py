"""README's quick start with Docker 20.10, on a served simulated machine with an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support import pages, readme
from tests.support.agentbed import RunningAgent
from tests.support.docker import Docker
from tests.support.required import agent, bed
from tests.support.runtimes import find

__all__ = ["agent", "bed"]
pytestmark = pytest.mark.engines
CONFIGURE, RELOAD, AGENT, RUN = readme.block("nvc-py runtime configure --runtime=docker")


@pytest.fixture(scope="module")
def docker(agent: RunningAgent) -> Iterator[Docker]:
    """dockerd whose daemon.json README's first line has edited."""
    own = agent.bed
    etc = own.directory("etc")
    (etc / "nvc").mkdir()
    real = f"[nvidia-container-runtime]\nruntimes = {json.dumps([find('runc')])}\n"
    (etc / "nvc/config.toml").write_text(f"{agent.settings}{real}")
    environment = {"NVC_SIM": agent.machine, "XDG_CONFIG_HOME": str(etc)}
    engine = Docker(own.token, own.directory("docker"), [str(own.commands.directory)], environment, shares=True)
    engine.write_config()
    program, *words = CONFIGURE.split()
    assert program == "nvc-py"
    own.call(own.commands.nvc, *words, f"--config={engine.config}", check=True)
    try:
        engine.start()
        engine.import_image(own.rootfs())
        yield engine
    finally:
        engine.stop()


def test_docker(docker: Docker, agent: RunningAgent) -> None:
    """README.md: the container sees its share as the whole GPU, and the agent knows it."""
    assert (RELOAD, AGENT) == ("systemctl reload docker", "systemctl enable --now nvc-agent")  # the fixtures
    options, command = pages.options(RUN, "docker")
    before = len(agent.of("tenant"))

    result = docker.run(options, command)

    assert (result.code, result.out) == (0, readme.shown()), result.text
    assert len(agent.of("tenant")) == before + 1
