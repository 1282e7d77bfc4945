"""A container without a GPU that has a guarded one's files of the driver, passed through a volume that both have."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agentbed import Held, RunningAgent
from tests.support.attacks import SOURCES
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container
from tests.support.leftovers import wait_until
from tests.support.passing import GIVEN, LINES, giver, got, is_refused, read, sidecar, volume_of
from tests.support.required import agent, bed, behind
from tests.support.runtimes import OciRuntime
from tests.support.tenants import build_static

__all__ = ["agent", "bed"]
pytestmark = [pytest.mark.root, pytest.mark.system]

GIB = 1 << 30
QUOTA = 4
SHARE = f"mem={QUOTA}Gi"


@pytest.fixture
def tree(bed: Bed) -> Path:
    tree = bed.rootfs()
    build_static(SOURCES[0], tree / "usr/bin/attack", *map(str, SOURCES[1:]))
    return tree


@pytest.fixture
def volume(bed: Bed) -> dict[str, object]:
    return volume_of(bed)


def charged(agent: RunningAgent, held: Held) -> int:
    tenant = agent.tenant(held.name)
    assert tenant is not None
    return sum(gpu.memory for gpu in tenant.gpus)


@pytest.fixture(params=["runc", "crun"])
def runtime(request: pytest.FixtureRequest, ask: Callable[[str, str], OciRuntime]) -> Iterator[OciRuntime]:
    yield ask(request.param, "v2")


def test_by_another_runtime_it_allocates_uncharged(
    bed: Bed, runtime: OciRuntime, agent: RunningAgent, tree: Path, volume: dict[str, object]
) -> None:
    """The attack: nvc-runtime started such a container as this runtime does."""
    with giver(behind(bed, runtime, agent), tree, volume, SHARE) as given:
        assert [given.line() for _ in GIVEN] == GIVEN
        container = sidecar(tree, volume)
        with Held(behind(bed, runtime, agent, "off"), container) as held:
            found = read(held.line() for _ in range(LINES))
            assert (found["client"], found["reopened"], found["own"]) == (0, 0, 0)
            assert found["pieces"] > 2 * QUOTA
            wait_until(lambda: charged(agent, given) > 0, "its guard knows of the container's own memory")
            time.sleep(2)  # the guard asks the driver every second
            assert charged(agent, given) <= (QUOTA + 1) * GIB


@pytest.mark.parametrize("way", ["run", "privileged", "none", "exec"])
def test_the_drivers_are_refused_to_it(
    bed: Bed, runtime: OciRuntime, agent: RunningAgent, tree: Path, volume: dict[str, object], way: str
) -> None:
    wrapped, container = behind(bed, runtime, agent), sidecar(tree, volume)
    with giver(wrapped, tree, volume, SHARE) as given:
        assert [given.line() for _ in GIVEN] == GIVEN
        if way == "exec":
            with Held(wrapped, replace(container, args=["sh", "-c", "echo up; read x"])) as held:
                assert held.line() == "up"
                result = held.execute(*container.args)
        elif way == "privileged":
            result = wrapped.run(replace(container, capabilities=["CAP_SYS_ADMIN"]), edit=with_privileges)
        else:
            result = wrapped.run(replace(container, env=gpu_env("none") if way == "none" else ()))
        assert is_refused(got(result)), result.text


def with_privileges(bundle: Path) -> None:
    """May have new ones, and no profile: as engines start privileged containers, less the host's devices."""
    config = json.loads((bundle / "config.json").read_text())
    config["process"]["noNewPrivileges"] = False
    (bundle / "config.json").write_text(json.dumps(config))


def test_exec_into_containers_with_a_gpu_is_as_before(
    bed: Bed, runtime: OciRuntime, agent: RunningAgent, tree: Path
) -> None:
    wrapped = behind(bed, runtime, agent)
    container = Container(tree, ["sh", "-c", "echo up; read x"], gpu_env("all"))
    for asked in ({"nvc.share": SHARE}, {}):
        with Held(wrapped, replace(container, annotations=asked)) as held:
            assert held.line() == "up"
            assert "bad=0\n" in held.execute("attack", "churn", "1", "4").out
