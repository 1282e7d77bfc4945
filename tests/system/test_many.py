"""Many containers at once, and containers whose root is not the host's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import leftovers, rootfs, sight
from tests.support.bed import Bed, device_nodes, gpu_env
from tests.support.bundle import Container
from tests.support.paused import Paused
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

MANY = 64
AT_ONCE = 16
OFFSET = 300000


@pytest.mark.timeout(300)
def test_sixty_four_containers_configured_at_once(bed: Bed, runc: OciRuntime) -> None:
    sim = f"--sim={bed.machine('h100x8')}"
    nodes = sorted(path for path in device_nodes(bed.machine("h100x8")) if path[-1].isdigit() and path[11].isdigit())
    looks = [sight.arguments(nodes=nodes, libraries=["libcuda.so.1"]) for _ in range(MANY)]

    def hold(look: list[str]) -> Paused:
        return Paused(bed, runc, Container(bed.rootfs(), look))

    def configure(item: tuple[int, Paused]) -> tuple[int, str]:
        index, held = item
        words = ["-d", str(index % 8), "-c", "-u", f"--pid={held.pid}", str(held.tree)]
        # As long as it takes: a busy machine is no matter here.
        answer = bed.call(bed.commands.nvc, sim, "--timeout=60", "configure", *words)
        return answer.code, answer.complaints

    with ThreadPoolExecutor(AT_ONCE) as pool:
        containers = list(pool.map(hold, looks))
    with ThreadPoolExecutor(MANY) as pool:
        configured = list(pool.map(configure, enumerate(containers)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(Paused.release, containers))
    assert [(0, "")] * MANY == configured
    assert [0] * MANY == [result.code for result in results]
    given = []
    for result in results:
        seen = sight.read(result.out)
        given += [path for path, answer in seen.nodes.items() if answer == "ENXIO"]
        assert [answer for answer in seen.nodes.values() if answer not in ("ENXIO", "ENOENT")] == []
        assert seen.libraries["libcuda.so.1"] != ""
        assert len(seen.lists[sight.GPUS]) == 1
    # Each of the eight GPUs went to eight containers, and to each of them alone.
    assert sorted(given) == sorted(nodes * (MANY // 8))
    runc.clean()
    assert leftovers.everything(bed.token) == []


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
@pytest.mark.parametrize("name", ["runc", "crun"])
def test_remapped_container(bed: Bed, ask: Callable[[str, str], OciRuntime], name: str, stage: str) -> None:
    """The container's root is uid 300000 on the host: what is made in it must belong to that user."""
    tree = bed.rootfs(owner=OFFSET)
    look = sight.arguments(nodes=["/dev/nvidia0"], libraries=["libcuda.so.1", "libnvidia-ml.so.1"])
    hooks = {stage: [bed.hook(stage)]}
    container = Container(tree, look, gpu_env("0"), hooks, id_offset=OFFSET)
    result = bed.run(ask(name, "v2"), container)
    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia0": "ENXIO"}
    assert all(seen.libraries.values())
    foreign = {str(path) for path in tree.rglob("*") if path.lstat().st_uid != OFFSET}
    assert foreign == set()


def test_remapped_create_container_hook_says_what_to_do(bed: Bed, runc: OciRuntime) -> None:
    """It is in the container's user namespace and device cgroup: the kept inventory is not for it, NVML cannot ask."""
    tree = bed.rootfs(owner=OFFSET)
    before = rootfs.fingerprint(tree)
    hook = bed.hook("createContainer", machine=bed.new_machine("h200"))
    container = Container(tree, ["/bin/true"], gpu_env("0"), {"createContainer": [hook]}, id_offset=OFFSET)
    result = bed.run(runc, container)
    assert result.code != 0
    assert "initialization error: " in result.text
    assert "prestart or createRuntime hook" in result.text
    assert before == rootfs.fingerprint(tree)


@pytest.mark.parametrize("kept", [pytest.param(False, id="cold"), pytest.param(True, id="warm")])
def test_create_container_hook_and_the_inventory(bed: Bed, runtime: OciRuntime, kept: bool) -> None:
    """The hook is in the container's device cgroup, which denies NVML the GPUs unless something is done about it."""
    machine = bed.new_machine("h200")
    if kept:
        bed.call(bed.commands.nvc, f"--sim={bed.machine(machine)}", "list", check=True)
    hooks = {"createContainer": [bed.hook("createContainer", machine=machine)]}
    look = sight.arguments(nodes=["/dev/nvidia0"], make=[("/dev/not-mine", 195, 77)])
    result = bed.run(runtime, Container(bed.rootfs(), look, gpu_env("0"), hooks))
    assert (result.code, result.complaints) == (0, "")
    assert sight.read(result.out).nodes == {"/dev/nvidia0": "ENXIO", "/dev/not-mine": "EPERM"}
