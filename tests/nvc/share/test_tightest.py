"""An image's annotations and ENV give it nothing that another annotation or variable does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import InputError
from nvc.model import Selection
from nvc.request.injection import ShareRequest
from nvc.share.model import RANK, GpuShare, ResolvedGpu
from nvc.share.policy import Policy, origins
from nvc.share.preview import preview
from nvc.share.sources import requested
from nvc.share.spec import parse_gpu
from nvc.share.tightest import tightest
from tests.support.inventories import gpu

GPU = gpu(0, "00000000:3d:00.0", "GPU-00000000-0000-0000-0000-000000000000").replace(memory=80 << 30)
ROOTS = {"NVC_SHARE": "mem=4Gi,cap=50%"}
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": "50"}
MINE = ResolvedGpu(GPU.uuid, GPU.minor, 4 << 30, 500)


def given_to(annotation: str = "", **environment: str) -> ResolvedGpu:
    found = preview(Policy(), ShareRequest(annotation, environment=environment), Selection(gpus=(GPU,)))
    assert found is not None
    (one,) = found.gpus
    return one


@pytest.mark.parametrize(
    "annotation",
    ["off", "mem=60Gi,weight=1000,priority=high", "mem=100%", "0:mem=60Gi,cap=100%", "oversubscribe=on", "weight=900"],
)
def test_an_images_annotation_takes_nothing_of_roots_share_away(annotation: str) -> None:
    assert given_to(annotation, **ROOTS) == MINE
    # Nor an image's ENV of root's annotation.
    assert given_to(ROOTS["NVC_SHARE"], NVC_SHARE=annotation) == MINE


@pytest.mark.parametrize(
    "image",
    [
        {"CGPU_DISABLE": "true"},
        {"CUDA_DISABLE_CONTROL": "true"},
        {"NVC_SHARE": "off"},
        {"NVC_SHARE": "mem=100%,priority=high"},
        {"GPU_CORE_UTILIZATION_POLICY": "disable"},
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "60g", "CUDA_DEVICE_SM_LIMIT_0": "100"},
        {"ALIYUN_COM_GPU_HIGH_PRIO": "true", "ALIYUN_COM_GPU_SCHD_WEIGHT": "16"},
        {"CUDA_MEM_LIMIT": "70g", "CUDA_MEM_OVERSOLD": "true"},
    ],
)
def test_an_images_variables_take_nothing_of_roots_away(image: dict[str, str]) -> None:
    assert given_to(**{**HAMI, **image}) == MINE.replace(memory=2 << 30)


def test_each_setting_is_the_tighter_one() -> None:
    found = given_to("mem=8Gi..40Gi,priority=low,idle=60s", NVC_SHARE="mem=25%,cap=30%,weight=5")
    assert (found.request, found.most, found.cap, found.weight) == (8 << 30, 20 << 30, 300, 5)
    assert (found.priority, found.idle) == ("low", 60)
    # A range that guarantees more than another one has is none.
    assert given_to("mem=8Gi..40Gi", NVC_SHARE="mem=4Gi") == ResolvedGpu(GPU.uuid, GPU.minor, 4 << 30)


def test_a_source_that_is_silent_gives_the_nodes_default() -> None:
    """Else an image would say what its container has where root's share says nothing."""
    policy = Policy(default=parse_gpu("mem=25%,weight=5,priority=low"))
    request = ShareRequest("mem=60Gi,weight=8,priority=normal", environment={"NVC_SHARE": "cap=50%"})
    found = preview(policy, request, Selection(gpus=(GPU,)))
    assert found is not None
    assert found.gpus == (MINE.replace(memory=20 << 30, weight=5, priority="low"),)


def test_off_counts_where_nothing_else_asks() -> None:
    for request in (ShareRequest("off"), ShareRequest("off", environment={"NVC_SHARE": "off"})):
        found = requested(Policy(), request)
        assert found is not None
        assert found.share.off
    found = requested(Policy(), ShareRequest("off", environment=HAMI))
    assert found is not None
    assert "nvc.share: off does not count beside CUDA_DEVICE_MEMORY_LIMIT" in found.warnings


def test_a_variable_of_the_program_s_own_does_not_stop_a_container_with_an_annotation() -> None:
    assert given_to("mem=4Gi,cap=50%", GPU_MEMORY_LIMIT="1") == MINE
    with pytest.raises(InputError, match="is named like a limit"):
        given_to(GPU_MEMORY_LIMIT="1")


def test_no_source_of_several_names_a_group() -> None:
    for request in (
        ShareRequest("mem=1Gi", environment={"NVC_SHARE": "group=a"}),
        ShareRequest("mem=1Gi,group=a", environment=HAMI),
    ):
        with pytest.raises(InputError, match="group=a is not accepted"):
            requested(Policy(), request)


def test_each_setting_names_its_source() -> None:
    request = ShareRequest("mem=60Gi,weight=5", environment={"NVC_SHARE": "mem=4Gi,priority=high"})
    said = requested(Policy(), request)
    found = preview(Policy(default=parse_gpu("cap=50%")), request, Selection(gpus=(GPU,)))
    assert found is not None
    (rules,) = origins(Policy(default=parse_gpu("cap=50%")), [GPU], said, found.gpus)
    assert (rules["mem"], rules["weight"], rules["cap"]) == ("NVC_SHARE", "nvc.share", "default")
    assert rules["priority"] == "cut"


SHARES = st.builds(
    GpuShare,
    memory=st.integers(1 << 20, 80 << 30),
    cap=st.integers(0, 1000),
    weight=st.integers(0, 1000),
    priority=st.sampled_from(("", *RANK)),
    oversubscribe=st.sampled_from((None, True, False)),
)


@given(st.lists(SHARES, min_size=2, max_size=4))
def test_no_share_of_several_gives_more_than_one_of_them(shares: list[GpuShare]) -> None:
    found = tightest(shares, GPU, GpuShare())
    for one in shares:
        assert found.memory <= one.memory
        assert (found.cap or 1000) <= (one.cap or 1000)
        assert (found.weight or 10) <= (one.weight or 10)
        assert RANK[found.priority or "normal"] <= RANK[one.priority or "normal"]
        assert bool(found.oversubscribe) <= bool(one.oversubscribe)


def test_a_service_waits_no_less_than_the_one_that_is_silent_says() -> None:
    shares = [parse_gpu("priority=service"), parse_gpu("priority=service,latency=600us")]
    assert tightest(shares, GPU, GpuShare()).latency == 1_000
