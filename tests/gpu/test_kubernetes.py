"""A pod's container on a real GPU: the bundle that containerd made for a kubelet, the claim's file by the driver's own
code, nvc-runtime, and the guard holds what was allocated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import native, pod_bundle
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.gpumeasure import SHARE_PROGRAMS, compile_programs
from tests.support.runtimes import OciRuntime
from tests.support.wrapped import Wrapped

pytestmark = [pytest.mark.gpu, pytest.mark.system]
GIB = 1 << 30
MEMORY = 4 * GIB


@pytest.fixture
def agent(bed: Bed) -> Iterator[RunningAgent]:
    native.build("nvc-monitor", "nvc-supervisor", "nvc-prober")
    with RunningAgent(bed, "") as running:
        yield running


@pytest.fixture
def tree(bed: Bed) -> Path:
    """With the program that allocates until it is refused; libcuda comes with the claim."""
    programs = compile_programs([SHARE_PROGRAMS / "quota.c"], bed.directory("programs"))
    tree = bed.rootfs()
    shutil.copy(programs / "quota", tree / "usr/bin/quota")
    return tree


def test_a_pod_has_what_was_allocated(bed: Bed, agent: RunningAgent, tree: Path, runc: OciRuntime) -> None:
    command = ["/usr/bin/quota", "malloc", "fill", str(2 * MEMORY)]
    cdi, hook = bed.directory("cdi"), str(bed.commands.directory / "nvc-cdi-hook")
    names = pod_bundle.prepared(cdi, "", hook, "4Gi", 30)
    config = bed.directory("etc") / "config.toml"
    config.write_text(agent.settings)

    def edit(bundle: Path) -> None:
        pod_bundle.write(bundle, tree, command, cdi, names, [f"--config={config}"])

    result = Wrapped(bed, runc, agent.settings, machine="").run(Container(tree, command), edit=edit)

    assert result.code == 0, f"{result.text}\n{agent.log.read_text()}"
    rows = (line.rpartition(" ") for line in result.out.splitlines())
    said = {name: int(value) for name, _, value in rows if name}
    print(f"allocated 4 GiB, 30 percent: total {said['total']}, taken {said['taken']}, status {said['status']}")
    assert (said["total"], said["status"]) == (MEMORY, 2), result.out
    assert said["taken"] <= MEMORY
    [tenant] = agent.of("tenant")
    assert "mem=4Gi,weight=300" in str(tenant["gpus"])

    bundle = bed.bundle(Container(tree, command))
    edit(bundle)
    alone = runc.run(bundle, bed.name("c"))
    assert (alone.code != 0, alone.out) == (True, ""), "without nvc-runtime it does not start"
    assert "requires a guard for shares" in alone.text
