"""LXC with the lines of docs/user/engines/lxc.md, and the installed command in PATH."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from tests.support import cgroupview, launchers, leftovers, userland
from tests.support.bed import Bed
from tests.support.engines import Lxc
from tests.support.launchers import CHECKOUT

pytestmark = pytest.mark.engines

Show = Callable[[str, str], None]


@pytest.mark.parametrize("suite", ["here", "sid"])
def test_the_lines_of_the_page(bed: Bed, need: Callable[..., None], show: Show, suite: str) -> None:
    """LXC 5 of this machine, and LXC 7 of sid, which has no support of hybrid cgroup trees."""
    under: list[str] = []
    if suite == "here":
        need("lxc-execute", "newuidmap")
    else:
        view = cgroupview.named("v2")
        if view is None:
            pytest.skip("this machine cannot show cgroup v2")
        under = view.wrap(userland.wrap(userland.place(suite)))
    page = (CHECKOUT / "docs/user/engines/lxc.md").read_text()
    block = re.search(r"```\n(lxc\..*?)```", page, re.DOTALL)
    assert block is not None
    settings = [tuple(part.strip() for part in line.split("=", 1)) for line in block[1].splitlines()]
    directory = bed.directory("bin")
    launchers.with_options(directory, "nvidia-container-cli", bed.commands.cli, f"--sim={bed.machine('h100x8')}")
    path = f"{directory}:{os.environ['PATH']}:/usr/sbin:/sbin"
    lxc = Lxc(bed.name("lxc"), bed.rootfs(owner=Lxc.offset), bed.directory("lxc"), path, env=bed.env, under=under)
    token = ("lxc.environment", f"{leftovers.VARIABLE}={bed.token}")
    lxc.prepare([token, *((key, value) for key, value in settings)])

    result = lxc.execute(["nvidia-smi", "-L"])

    assert result.code == 0, result.text + lxc.log.read_text()
    assert result.out.count("GPU-") == 8
    show("lxc-execute -n NAME -- nvidia-smi -L", result.out)
