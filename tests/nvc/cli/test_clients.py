"""Argument lists of real clients, as they were recorded: each must be read as its author meant it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from nvc.request.options import container_options, library_options
from tests.support.inventories import GPU_A, two_gpus
from tests.support.library import FakeLibrary

Command = Callable[..., tuple[int, str, str]]
LXC = "/usr/lib/x86_64-linux-gnu/lxc/rootfs"
CALLER = (os.geteuid(), os.getegid())
NO_CLIENT = (None, None)
DOCKER = "--load-kmods configure --cuda-compat-mode=ldconfig --ldconfig=@/sbin/ldconfig"
UNPRIVILEGED = "--user configure --no-cgroups --ldconfig=@/usr/sbin/ldconfig"

# Words; library words; ids of the driver service; container words; pid; ldconfig; GPUs; requirements.
CASES = [
    pytest.param(
        f"--load-kmods configure --device=0 --compute --compat32 --graphics --utility --video --display --pid=41 {LXC}",
        "load-kmods",
        NO_CLIENT,
        "compute compat32 graphics utility video display supervised",
        41,
        "",
        [0],
        (),
        id="ctr-run-gpus-0",
    ),
    pytest.param(
        f"{DOCKER} --device=all --compute --utility --pid=41 {LXC}",
        "load-kmods",
        NO_CLIENT,
        "cuda-compat-mode=ldconfig compute utility supervised",
        41,
        "@/sbin/ldconfig",
        [0, 1],
        (),
        id="docker-gpus-all-and-containerd-cri",
    ),
    pytest.param(
        f"{DOCKER} --device=0,1 --compute --utility --pid=41 {LXC}",
        "load-kmods",
        NO_CLIENT,
        "cuda-compat-mode=ldconfig compute utility supervised",
        41,
        "@/sbin/ldconfig",
        [0, 1],
        (),
        id="docker-gpus-device-0-1",
    ),
    pytest.param(
        f"{DOCKER} --device=all --compute --require=cuda>=12.0 --pid=41 {LXC}",
        "load-kmods",
        NO_CLIENT,
        "cuda-compat-mode=ldconfig compute supervised",
        41,
        "@/sbin/ldconfig",
        [0, 1],
        ("cuda>=12.0",),
        id="docker-runtime-nvidia",
    ),
    pytest.param(
        f"{UNPRIVILEGED} --device=all --compute --utility --require=cuda>=11.0 {LXC}",
        "",
        CALLER,
        "no-cgroups compute utility standalone",
        None,
        "@/usr/sbin/ldconfig",
        [0, 1],
        ("cuda>=11.0",),
        id="lxc",
    ),
    pytest.param(
        f"{UNPRIVILEGED} --device=0,1 --compute --compat32 --display --graphics --utility --video {LXC}",
        "",
        CALLER,
        "no-cgroups compute compat32 display graphics utility video standalone",
        None,
        "@/usr/sbin/ldconfig",
        [0, 1],
        (),
        id="lxc-all-capabilities",
    ),
    pytest.param(
        "--debug={tmp}/nv.log --user --ldcache=/etc/ld.so.cache --root=/run/nvidia/driver configure --no-cgroups "
        f"--ldconfig=@/sbin/ldconfig.real --device={GPU_A} --utility {LXC}",
        "",
        CALLER,
        "no-cgroups utility standalone",
        None,
        "@/sbin/ldconfig.real",
        [0],
        (),
        id="lxc-hook-arguments",
    ),
    pytest.param(
        f"{UNPRIVILEGED} --utility {LXC}",
        "",
        CALLER,
        "no-cgroups utility standalone",
        None,
        "@/usr/sbin/ldconfig",
        [],
        (),
        id="lxc-devices-none",
    ),
    pytest.param(
        f"{UNPRIVILEGED} --device=all --utility --require=arch>=7.0 --require=cuda>=12.0 {LXC}",
        "",
        CALLER,
        "no-cgroups utility standalone",
        None,
        "@/usr/sbin/ldconfig",
        [0, 1],
        ("arch>=7.0", "cuda>=12.0"),
        id="lxc-two-requirements",
    ),
    pytest.param(
        f"{UNPRIVILEGED} --compute --utility --require=cuda>=11.0 {LXC}",
        "",
        CALLER,
        "no-cgroups compute utility standalone",
        None,
        "@/usr/sbin/ldconfig",
        [],
        ("cuda>=11.0",),
        id="incus",
    ),
]


@pytest.mark.parametrize(
    ("words", "library_names", "ids", "container_names", "pid", "ldconfig", "gpus", "requirements"), CASES
)
def test_client(
    words: str,
    library_names: str,
    ids: tuple[int | None, int | None],
    container_names: str,
    pid: int | None,
    ldconfig: str,
    gpus: list[int],
    requirements: tuple[str, ...],
    command: Command,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NVC_DEBUG_FILE", "")  # restored afterwards: --debug sets it
    library = FakeLibrary(two_gpus())
    assert command(*words.format(tmp=tmp_path).split(), on=library) == (0, "", "")
    config = library.configs[0]
    container = FakeLibrary.ContainerConfig(pid=pid, rootfs=LXC, ldconfig=ldconfig)
    assert library.calls[1] == ("init", library_options(library_names.split()))
    assert library.calls[2] == ("container", container, container_options(container_names.split()))
    assert (config.uid, config.gid) == ids
    assert [call[1] for call in library.calls if call[0] == "device"] == gpus
    assert ("require", requirements) in library.calls
    if "--root" in words:
        assert (config.root, config.ldcache) == ("/run/nvidia/driver", "/etc/ld.so.cache")
        assert config.debug == f"{tmp_path}/nv.log"
