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


@pytest.fixture(params=["here", "sid"])
def under(request: pytest.FixtureRequest, need: Callable[..., None]) -> list[str]:
    """What runs LXC 5 of this machine, or LXC 7 of sid, which has no support of hybrid cgroup trees."""
    if request.param == "here":
        need("lxc-execute", "newuidmap")
        return []
    view = cgroupview.named("v2")
    if view is None:
        pytest.skip("this machine cannot show cgroup v2")
    return view.wrap(userland.wrap(userland.place(request.param)))


def container(bed: Bed, under: list[str]) -> Lxc:
    """One with the lines of the page."""
    page = (CHECKOUT / "docs/user/engines/lxc.md").read_text()
    block = re.search(r"```\n(lxc\..*?)```", page, re.DOTALL)
    assert block is not None
    settings = [tuple(part.strip() for part in line.split("=", 1)) for line in block[1].splitlines()]
    directory = bed.directory("bin")
    launchers.with_options(directory, "nvidia-container-cli", bed.commands.cli, f"--sim={bed.machine('h100x8')}")
    path = f"{directory}:{os.environ['PATH']}:/usr/sbin:/sbin"
    rootfs = bed.rootfs(owner=Lxc.offset)
    lxc = Lxc(bed.name("lxc"), rootfs, bed.directory("lxc"), path, level="DEBUG", env=bed.env, under=under)
    token = ("lxc.environment", f"{leftovers.VARIABLE}={bed.token}")
    lxc.prepare([token, *((key, value) for key, value in settings)])
    return lxc


def test_the_lines_of_the_page(bed: Bed, show: Show, under: list[str]) -> None:
    lxc = container(bed, under)

    result = lxc.execute(["nvidia-smi", "-L"])

    assert result.code == 0, result.text + lxc.log.read_text()
    assert result.out.count("GPU-") == 8
    show("lxc-execute -n NAME -- nvidia-smi -L", result.out)


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ("auto", "shares are kept there: the hook must run as root"),
        ("require", "this node requires a guard for shares, and this container has none"),
    ],
)
def test_a_node_with_a_share_for_all_starts_none(bed: Bed, under: list[str], guard: str, said: str) -> None:
    """LXC's hook runs in the container's user namespace, where no share can be kept, and LXC passes no listener on."""
    lxc = container(bed, under)
    (lxc.place / "etc/nvc").mkdir()
    (lxc.place / "etc/nvc/config.toml").write_text(f'[share]\ndefault = "mem=4Gi"\nguard = "{guard}"\n')

    result = lxc.execute(["nvidia-smi", "-L"])

    assert (result.code != 0, result.out) == (True, ""), result.text
    assert said in lxc.log.read_text()
