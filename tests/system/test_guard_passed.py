"""A file of the driver that a container passes to another one, behind the real filter."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.attacks import SOURCES
from tests.support.firsts import FirstProcess
from tests.support.guarded import GuardedTenant
from tests.support.passing import REFUSED, passed
from tests.support.simgpu import SimGpu, make_machine, with_gpu
from tests.support.spoken import Spoken
from tests.support.tenants import build_static
from tests.system.test_guarded_smoke import environment, guarding

pytestmark = [pytest.mark.root, pytest.mark.system]
GIB = 1 << 30


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("machine")
    make_machine(directory)
    build_static(SOURCES[0], directory / "attack", *map(str, SOURCES[1:]))
    return directory


def test_another_containers_file_is_good_for_nothing(machine: Path) -> None:
    def inside(gpu: SimGpu) -> None:
        def start(tenant: GuardedTenant, *words: str) -> Spoken:
            return Spoken(tenant.wrap([str(machine / "attack"), *words]), environment(gpu), seconds=30)

        with guarding(gpu) as guarded:
            giver, taker = guarded.tenant(memory=4 * GIB), guarded.tenant(memory=4 * GIB)
            got, own = passed(start, gpu.work, giver, taker)
            assert got == REFUSED
            assert own == {"group": 0, "memory": 0, "ready": 1, "freed": 0}
            assert taker.refused() == {"foreign-file": len(REFUSED) - 1}
            assert giver.refused() == {}
            assert giver.empty() and taker.empty()

    with_gpu(machine, inside)


def test_which_files_are_the_containers(machine: Path) -> None:
    """By the mount namespace that they were opened in."""

    def inside(gpu: SimGpu) -> None:
        program = str(machine / "attack")

        def run(tenant: GuardedTenant, *words: str, file: int = -1) -> str:
            kept = (file,) if file >= 0 else ()
            done = subprocess.run(
                tenant.wrap(["/usr/bin/env", *words]),
                env=environment(gpu),
                input="\n",
                capture_output=True,
                text=True,
                timeout=30,
                pass_fds=kept,
                check=False,
            )
            return done.stdout

        def churns(tenant: GuardedTenant, *before: str) -> bool:
            return "bad=0\n" in run(tenant, *before, program, "churn", "1", "4")

        with guarding(gpu) as guarded:
            tenant = guarded.tenant(FirstProcess(pid=True), memory=GIB)
            new = ("unshare", "--mount", "--propagation", "private")
            assert churns(tenant)
            assert churns(tenant, *new), "a namespace that the container's own user namespace owns"
            root = gpu.work / "root"
            (root / "dev").mkdir(parents=True)
            script = f"mount --rbind /dev {root}/dev && cp {program} {root} && exec chroot {root} /attack churn 1 4"
            assert "bad=0\n" in run(tenant, "sh", "-c", script), "by a mount that was made later"
            assert tenant.refused() == {}
            file = os.open("/dev/nvidiactl", os.O_RDWR)
            run(tenant, program, "exec", str(file), "1", file=file)
            os.close(file)
            assert "foreign-file" not in tenant.refused(), "a file of the host's"
            assert not churns(tenant, "unshare", "--user", "--map-root-user", "--mount")
            assert tenant.refused()["foreign-file"] > 0

    with_gpu(machine, inside)
