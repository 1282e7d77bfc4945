"""A share that its GPUs cannot give is told when the spec is made, not when containers start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import InputError
from nvc.cdi import fitting
from nvc.cli.main import main
from nvc.model import Inventory
from nvc.request.injection import ShareRequest
from nvc.share import policyfile
from nvc.share.policy import Policy
from nvc.share.spec import parse_gpu
from tests.nvc.cdi.conftest import Machine
from tests.support.inventories import gpu, mig_device, two_gpus

GIB = 1 << 30
DOES_NOT_START = ": a container with it does not start ("
MANY = "it has 143771Mi; more needs oversubscribe=on"


def machine(*sizes: int) -> Inventory:
    """GPUs with so many GiB; 0: one that is divided by MIG."""
    gpus = []
    for index, size in enumerate(sizes):
        migs = () if size else (mig_device(index, 0, 1, 0, f"MIG-{index}"),)
        found = gpu(index, f"00000000:0{index + 1}:00.0", f"GPU-0000000{index}-0000-0000-0000-000000000000", *migs)
        gpus.append(found.replace(memory=(size or 80) * GIB))
    return two_gpus().replace(gpus=tuple(gpus))


def fixed(spec: str) -> ShareRequest:
    return ShareRequest(fixed=(spec,))


@pytest.mark.parametrize(
    ("spec", "sizes", "told"),
    [
        ("mem=10Gi", (40, 80), []),
        ("mem=80Gi", (80,), []),
        ("mem=60Gi,oversubscribe=on", (40, 80), []),
        ("0:mem=30Gi;1:mem=60Gi", (40, 80), []),
        ("off", (40,), []),
        ("mem=60Gi", (40, 80, 40), ["mem=60Gi is more than GPU 0 has", "mem=60Gi is more than GPU 2 has"]),
        ("mem=50Gi..60Gi", (40, 80), ["mem=50Gi..60Gi is more than GPU 0 has"]),
        ("0:mem=10Gi;mem=60Gi", (40, 80, 40), ["mem=60Gi is more than GPU 2 has"]),
        ("mem=10Gi", (40, 0), ["a MIG device cannot be shared"]),
    ],
)
def test_what_some_containers_cannot_have_is_a_warning(spec: str, sizes: tuple[int, ...], told: list[str]) -> None:
    found = fitting.warnings(Policy(), fixed(spec), machine(*sizes))
    assert [line.partition(DOES_NOT_START)[0] for line in found] == [f"--share-fixed: {one}" for one in told]


@pytest.mark.parametrize(
    ("spec", "sizes", "told"),
    [
        ("mem=500Gi", (40, 80), "mem=500Gi is more than GPU 0 has"),
        ("mem=81Gi", (80,), "mem=81Gi is more than GPU 0 has"),
        ("0:mem=10Gi;1:mem=500Gi", (40, 80), "mem=500Gi is more than GPU 1 has"),
        ("7:mem=10Gi", (40, 80), "the container has no GPU 7"),
        ("mem=10Gi", (0,), "a MIG device cannot be shared"),
    ],
)
def test_what_no_container_can_have_is_refused(spec: str, sizes: tuple[int, ...], told: str) -> None:
    with pytest.raises(InputError) as caught:
        fitting.warnings(Policy(), fixed(spec), machine(*sizes))
    assert caught.value.message == f"--share-fixed: {told}"
    assert caught.value.hint


def test_the_nodes_rules_hold_as_at_a_start() -> None:
    most = Policy(maximum=parse_gpu("mem=20Gi"))
    with pytest.raises(InputError, match="more than"):
        fitting.warnings(most, fixed("mem=30Gi"), machine(40))
    (told,) = fitting.warnings(Policy(clamp=True), fixed("mem=60Gi"), machine(40))
    assert told == "--share-fixed: mem=60Gi is more than GPU 0 has; it gets the whole"
    with pytest.raises(InputError, match="group=a is not accepted"):
        fitting.warnings(Policy(), ShareRequest(option="group=a,mem=1Gi"), machine(40))


@pytest.mark.parametrize("option", ["--share", "--share-fixed"])
def test_generate_refuses_it_and_leaves_the_file(
    option: str,
    machine: Callable[[str], Machine],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(policyfile, "CONFIG", str(tmp_path / "none.toml"))
    path = tmp_path / "nvidia.yaml"
    words = (f"--sim={machine('h200').host.root}", "cdi", "generate", "--nvc-hook-path=/opt/nvc-cdi-hook")
    assert main((*words, f"{option}=mem=500Gi", f"--output={path}"), "nvc-py") == 1
    assert capfd.readouterr().err == (
        f"nvc-py: input error: {option}: mem=500Gi is more than GPU 0 has\nnvc-py: hint: {MANY}\n"
    )
    assert not path.exists()
    assert main((*words, f"{option}=mem=100Gi", f"--output={path}"), "nvc-py") == 0
    # A broken file of rules keeps containers from starting until it is right, and no spec from being made.
    (tmp_path / "none.toml").write_text("[shre]\n")
    assert main((*words, f"{option}=mem=100Gi", f"--output={path}", "--check"), "nvc-py") == 0
