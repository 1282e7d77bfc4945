"""Many containers at once, and containers whose root is not the host's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support import leftovers, sight
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import STAGES, Container
from tests.support.runtimes import OciRuntime

pytestmark = pytest.mark.system

MANY = 64
AT_ONCE = 16
OFFSET = 300000


@pytest.mark.timeout(300)
def test_sixty_four_containers_configured_at_once(bed: Bed, runc: OciRuntime) -> None:
    sim = f"--sim={bed.machine('8xh100')}"
    trees = [bed.rootfs() for _ in range(MANY)]
    names = [bed.name("many") for _ in trees]
    looks = [sight.arguments(nodes=[f"/dev/nvidia{index % 8}"], libraries=["libcuda.so.1"]) for index in range(MANY)]
    bundles = [bed.bundle(Container(tree, look)) for tree, look in zip(trees, looks, strict=True)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(runc.create, bundles, names))
        assert [result.code for result in made] == [0] * MANY, next(result.text for result in made if result.code)
        pids = list(pool.map(runc.pid, names))

    def configure(index: int) -> tuple[int, str]:
        words = ["-d", str(index % 8), "-c", "-u", f"--pid={pids[index]}", str(trees[index])]
        answer = bed.call(bed.commands.nvc, sim, "configure", *words)
        return answer.code, answer.complaints

    with ThreadPoolExecutor(MANY) as pool:
        assert [(0, "")] * MANY == list(pool.map(configure, range(MANY)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert [0] * MANY == [result.code for result in pool.map(runc.start, names)]
        list(pool.map(runc.wait, names))
    for index, made_bundle in enumerate(bundles):
        seen = sight.read((made_bundle / "output").read_text())
        assert seen.nodes == {f"/dev/nvidia{index % 8}": "ENXIO"}
        assert seen.libraries["libcuda.so.1"] != ""
        assert len(seen.lists[sight.GPUS]) == 1
    runc.clean()
    assert leftovers.everything(bed.token) == []


@pytest.mark.parametrize("stage", STAGES)
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
