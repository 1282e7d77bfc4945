"""crun opens the file that an annotation names, as root, for what hooks say: an image's annotation with old Podmans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import cgroupview
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container

pytestmark = pytest.mark.system


@pytest.mark.parametrize("stage", ["prestart", "createRuntime", "createContainer"])
def test_a_hook_says_nothing_in_a_file_of_the_host(bed: Bed, need: Callable[..., None], stage: str) -> None:
    need("crun")
    view = next((view.name for view in cgroupview.available() if view.name != "hybrid"), "")
    if not view:
        pytest.skip("crun refuses what this machine has of cgroups")
    target = bed.directory("etc") / "ld.so.preload"
    env = (*gpu_env("0"), "NVIDIA_REQUIRE_X=x /evil.so y")
    hooks = {stage: [bed.hook(stage)]}
    container = Container(bed.rootfs(), ["/bin/true"], env, hooks, annotations={"run.oci.hooks.stderr": str(target)})

    result = bed.run(bed.runtime("crun", view), container)

    assert result.code != 0
    assert "error executing hook" in result.text
    assert target.read_bytes() == b""
