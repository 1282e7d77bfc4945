"""Simulated machines, made once, and the spec of each."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from nvc.api import Config, Context
from nvc.cdi.gather import gather
from nvc.cdi.generate import GenerateOptions, generate
from nvc.cdi.spec import CdiSpec
from nvc.model import Host, Inventory
from nvc.sim.create import create
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
