"""Simulated machines, made once, and the spec of each; a container's root as hooks find it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.cdi import hooks
from nvc.cdi.gather import gather
from nvc.cdi.generate import GenerateOptions, generate
from nvc.cdi.hooks import HookTarget
from nvc.cdi.spec import CdiSpec
from nvc.inject.api import Config, Context
from nvc.model import Host, Inventory
from nvc.sim.create import create
from tests.support import injection
from tests.support.injection import MS_BIND, MS_REC, mount
from tests.support.native import build

#: What stands in golden files for the directory of a machine.
PLACE = "/MACHINE"


class Machine:
    """A simulated machine and what was found on it. Specs are made as if it were in PLACE."""

    def __init__(self, host: Host) -> None:
        self.host = host
        with Context(Config(sim=host.root, cache=False)) as context:
            self.inventory: Inventory = context.inventory()
        self.around = gather(host, self.inventory)

    def spec(self, **options: object) -> CdiSpec:
        host = self.host.replace(root=PLACE, system=PLACE)
        return generate(self.inventory, self.around, host, GenerateOptions(**options))


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Machine]:
    if os.geteuid() != 0:
        pytest.skip("device nodes are made by root only")
    build()
    known: dict[str, Machine] = {}

    def get(name: str) -> Machine:
        if name not in known:
            known[name] = Machine(create(str(tmp_path_factory.mktemp("cdi") / name), name))
        return known[name]

    return get


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = injection.make_rootfs(tmp_path / "rootfs")
    for name in ("usr/lib/driver", "usr/local/cuda-12.9/compat"):
        (root / name).mkdir(parents=True)
    (root / "usr/local/cuda").symlink_to("cuda-12.9")
    return root


def enter(rootfs: Path, **nodes: int) -> HookTarget:
    """Mount what a runtime has mounted at createContainer, in our namespace; take the rights that a hook keeps.

    nodes: device nodes of the driver in /dev, with their minor numbers.
    """
    mount(str(rootfs), rootfs, None, MS_BIND | MS_REC)
    for name, kind, data in (("proc", "proc", None), ("dev", "tmpfs", "mode=0755")):
        if stat.S_ISDIR((rootfs / name).lstat().st_mode):
            mount(kind, rootfs / name, kind, 0, data)
    for name, minor in nodes.items():
        os.mknod(rootfs / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(195, minor))
    hooks.prepare()
    return HookTarget(str(rootfs))
