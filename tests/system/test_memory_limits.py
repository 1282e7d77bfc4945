"""NVIDIA's CDI hook apply-cuda-memory-limits (its toolkit, 1.20.1): a memory quota, in containers of runc and crun.

The entries are those of nvidia-ctk 1.20.1, with our program in its place: at createRuntime, one for each GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from nvc.share import store
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.runtimes import OciRuntime, Result
from tests.support.wrapped import Wrapped

pytestmark = pytest.mark.system
NAME = "apply-cuda-memory-limits"
LIMIT, REQUEST = "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"
MACHINE = "h100x8"
SHOW = ["/bin/sh", "-c", "cat /etc/ld.so.preload; head -c 4 /run/nvc-share/limits; echo"]
HELD = "libnvc-shim.so"


@pytest.fixture(autouse=True)
def forgotten(bed: Bed) -> Iterator[None]:
    yield
    forget(bed)


def forget(bed: Bed) -> None:
    for entry in store.entries()[0]:
        with entry:
            if bed.token in entry.record.container:
                store.remove(entry.record.key)


@pytest.fixture(scope="module")
def uuids(whole_bed: Bed) -> list[str]:
    told = whole_bed.call(whole_bed.commands.nvc, f"--sim={whole_bed.machine(MACHINE)}", "info", "--json", check=True)
    return [gpu["uuid"] for gpu in json.loads(told.out)["gpus"]]


def entry(bed: Bed, *words: str) -> Hook:
    program = bed.commands.hook.replace("nvc-hook", "nvc-cdi-hook")
    return Hook(program, ["nvidia-cdi-hook", *words, f"--sim={bed.machine(MACHINE)}"], ("NVIDIA_CTK_DEBUG=false",))


def run(bed: Bed, runtime: OciRuntime, uuids: list[str], *env: str, **more: object) -> Result:
    """A container that has two GPUs from an engine's CDI; nothing but the hook looks at its variables."""
    config = bed.directory("config") / "config.toml"
    config.write_text("[share]\nvariables = false\n")
    hooks = {
        "prestart": [bed.hook("prestart", "--config", str(config), machine=MACHINE)],
        "createRuntime": [entry(bed, NAME, "--driver-root", "", "--gpu-id", uuid) for uuid in uuids],
    }
    asked = gpu_env("2,3")
    return bed.run(runtime, Container(bed.rootfs(), SHOW, [*asked, *env], hooks, **more))  # type: ignore[arg-type]


def granted(bed: Bed) -> list[tuple[str, list[str]]]:
    """The words of the containers' shares, and the GPUs that they are of."""
    found = store.entries()[0]
    try:
        mine = [one for one in found if bed.token in one.record.container]
        return [(one.record.text, [gpu.uuid for gpu in one.limits().gpus]) for one in mine]
    finally:
        for one in found:
            one.close()


def limited(bed: Bed) -> dict[str, int]:
    """The GPUs of the containers' shares, and the memory that they may have of each."""
    found = store.entries()[0]
    try:
        mine = [one.limits() for one in found if bed.token in one.record.container]
        return {gpu.uuid: gpu.memory for one in mine for gpu in one.gpus}
    finally:
        for one in found:
            one.close()


@pytest.mark.parametrize(("name", "view"), [("runc", "hybrid"), ("crun", "v2")])
def test_the_limit_is_a_quota_of_every_gpu(
    bed: Bed, ask: Callable[[str, str], OciRuntime], uuids: list[str], name: str, view: str
) -> None:
    result = run(bed, ask(name, view), uuids[2:4], f"{LIMIT}=2048", f"{REQUEST}=1024")

    assert (result.code, result.complaints) == (0, ""), result.text
    assert HELD in result.out
    assert result.out.endswith("NVCL\n")
    assert granted(bed) == [("mem=2Gi,cap=100%", uuids[2:4])]


def test_an_annotation_may_ask_for_more_than_memory(bed: Bed, runc: OciRuntime, uuids: list[str]) -> None:
    result = run(bed, runc, uuids[2:4], f"{LIMIT}=4096", annotations={"nvc.share": "mem=1Gi,cap=50%"})

    assert result.code == 0, result.text
    assert [text for text, _ in granted(bed)] == ["mem=1Gi,cap=50%"]
    assert limited(bed) == dict.fromkeys(uuids[2:4], 1 << 30)  # the limit is the looser one


@pytest.mark.parametrize("guard", ["off", "auto"])
def test_a_limit_of_other_gpus_leaves_the_share_of_the_first(
    bed: Bed, runc: OciRuntime, uuids: list[str], guard: str
) -> None:
    """Attack: the tenant's variables gave it GPU 0 by nvc-hook; the hook for the engine's GPU 1 replaced that share."""
    rules = f'[agent]\ndirectory = "{bed.directory("none")}"\n[share]\nguard = "{guard}"\n'
    behind = Wrapped(bed, runc, rules + 'default = "mem=4Gi"\nmaximum = "mem=4Gi"\n', machine=MACHINE)
    hooks = {"createRuntime": [entry(bed, NAME, "--driver-root", "", "--gpu-id", uuids[1])]}
    for more, wanted in ((4096, 4096), (1024, 1024), (16384, 16384)):
        env = [*gpu_env("0"), f"{LIMIT}={more}"]
        result = behind.run(Container(bed.rootfs(), SHOW, env, hooks))
        if more > 4096:
            assert "more than this node gives" in result.text
            continue
        assert result.code == 0, result.text
        assert result.out.endswith("NVCL\n")
        assert limited(bed) == {uuids[0]: wanted << 20, uuids[1]: wanted << 20}
        forget(bed)


@pytest.mark.parametrize("env", [(), (f"{REQUEST}=1024",)], ids=["nothing", "a request is no limit"])
def test_without_a_limit_nothing_is_done(bed: Bed, runc: OciRuntime, uuids: list[str], env: tuple[str, ...]) -> None:
    result = run(bed, runc, uuids[2:4], *env)

    assert HELD not in result.out
    assert "head: /run/nvc-share/limits: No such file" in result.err
    assert granted(bed) == []


def test_more_than_the_card_has_is_the_whole_card(bed: Bed, runc: OciRuntime, uuids: list[str]) -> None:
    """As for the driver: the number that a scheduler has of a card is a round one."""
    result = run(bed, runc, uuids[2:3], f"{LIMIT}=81920")

    assert result.code == 0, result.text
    assert granted(bed) == [("mem=100%,cap=100%", uuids[2:3])]


@pytest.mark.parametrize(
    ("env", "uuid", "said"),
    [
        ((f"{LIMIT}=lots",), "", f"{LIMIT}='lots' is not a number of MiB"),
        ((f"{LIMIT}=",), "", f"{LIMIT}='' is not a number of MiB"),
        ((f"{LIMIT}=0",), "", f"{LIMIT}=0 leaves no memory"),
        ((f"{LIMIT}=1024", f"{REQUEST}=2048"), "", f"{REQUEST}=2048 is more than {LIMIT}=1024"),
        ((f"{LIMIT}=1024", f"{REQUEST}=-1"), "", f"{REQUEST}='-1' is not a number of MiB"),
        ((f"{LIMIT}=1024",), "GPU-00000000-0000-0000-0000-000000000000", "is not on this machine"),
    ],
)
def test_a_limit_that_cannot_be_applied_fails_the_container(
    bed: Bed, runc: OciRuntime, uuids: list[str], env: tuple[str, ...], uuid: str, said: str
) -> None:
    result = run(bed, runc, [uuid or uuids[2]], *env)

    assert result.code != 0
    assert said in result.text
    assert granted(bed) == []


def test_a_hook_from_the_future_that_applies_something_fails_the_container(bed: Bed, runc: OciRuntime) -> None:
    for name, runs in (("apply-power-limits", False), ("show-power-limits", True)):
        container = Container(bed.rootfs(), ["/bin/true"], (), {"createRuntime": [entry(bed, name, "--watts", "300")]})
        result = bed.run(runc, container)
        assert (result.code == 0) is runs, result.text
        assert runs or f"unknown hook '{name}'" in result.text
