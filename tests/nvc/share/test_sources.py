"""The order of sources: the first counts as a whole, and fixed settings are final."""

from __future__ import annotations

import pytest

from nvc.base.errors import InputError
from nvc.model import Selection
from nvc.request.injection import ShareRequest
from nvc.share.model import GpuShare, Share
from nvc.share.policy import Policy, guarded
from nvc.share.preview import preview
from nvc.share.sources import ANNOTATION, DEFAULT, FIXED, OPTION, leaves_guard, requested
from nvc.share.spec import format_share, have_common, merge, parse, parse_gpu
from tests.support.inventories import gpu

GPUS = tuple(
    gpu(index, f"00000000:{index:02x}:00.0", f"GPU-00000000-0000-0000-0000-00000000000{index}").replace(memory=80 << 30)
    for index in range(3)
)
A, B, C = (one.uuid for one in GPUS)
EVERY = ShareRequest(
    annotation="mem=2Gi", option="mem=3Gi", environment={"NVC_SHARE": "mem=1Gi"}, fixed=("mem=4Gi",), guard_off=True
)


def source(policy: Policy, request: ShareRequest) -> str:
    found = preview(policy, request, Selection(gpus=GPUS))
    return found.source if found is not None else ""


def test_each_source_counts_where_those_before_it_say_nothing() -> None:
    policy = Policy(default=parse_gpu("cap=50%"))
    request, found = EVERY, []
    for empty in ({"fixed": ()}, {"option": ""}, {"annotation": ""}, {"environment": {}}, {}):
        found.append(source(policy, request))
        request = request.replace(**empty)
    assert found == [FIXED, OPTION, ANNOTATION, "NVC_SHARE", DEFAULT]
    assert source(policy.replace(variables=False), EVERY.replace(fixed=(), option="", annotation="")) == DEFAULT


@pytest.mark.parametrize(
    "request_",
    [
        ShareRequest(annotation="mem=1Gi,group=a"),
        ShareRequest(option="group=a,mem=1Gi"),
        ShareRequest(environment={"NVC_SHARE": "group=a"}),
        ShareRequest(annotation=f"{A}:group=a"),
    ],
    ids=["annotation", "option", "variable", "of a GPU"],
)
def test_only_fixed_settings_name_a_group(request_: ShareRequest) -> None:
    """Attack: an annotation that names another tenant's group would share its quota."""
    with pytest.raises(InputError, match="group=a is not accepted"):
        requested(Policy(), request_)


@pytest.mark.parametrize("text", ["mem=1Gi,group=a", "group=a"])
def test_neither_do_the_nodes_rules_nor_a_live_change(text: str) -> None:
    with pytest.raises(InputError, match="is not for one GPU"):
        parse_gpu(text)


def test_a_group_is_part_of_what_a_container_gets() -> None:
    found = preview(Policy(), ShareRequest(fixed=(f"{A}:mem=1Gi,group=claim-0",)), Selection(gpus=GPUS[:1]))
    assert found is not None
    assert found.group == "claim-0"
    early = preview(Policy(), ShareRequest(fixed=("group=claim-0;mem=1Gi",)))
    assert early is not None
    assert early.group == "claim-0"


@pytest.mark.parametrize("name", ["", "-a", ".a", "a/b", "a b", "a" * 64, "ä"])
def test_a_group_has_a_name_that_a_file_can_have(name: str) -> None:
    with pytest.raises(InputError, match="share: "):
        parse(f"mem=1Gi,group={name}")


def test_a_spec_with_a_group_is_read_back() -> None:
    for text in (f"cap=5%;group=x;{A}:mem=1Gi", "group=x", f"group=x;{A}:mem=1Gi", "cap=5%;group=x;guard=require"):
        assert format_share(parse(text)) == text


def test_several_hooks_add_up_to_one_share() -> None:
    texts = (f"{A}:mem=1Gi,priority=high,group=x", f"{B}:cap=10%", f"{B}:cap=10%", "weight=3")
    assert merge(texts) == Share(
        GpuShare(weight=3), ((A, GpuShare(1 << 30, priority="high")), (B, GpuShare(cap=100))), group="x"
    )
    found = preview(Policy(), ShareRequest(fixed=texts), Selection(gpus=GPUS))
    assert found is not None
    assert [(one.memory, one.cap, one.weight, one.priority) for one in found.gpus] == [
        (1 << 30, 1000, 3, "high"),
        (0, 100, 3, "normal"),
        (0, 1000, 3, "normal"),
    ]


def test_what_two_claims_have_of_one_gpu_adds_up() -> None:
    first, second = f"{A}:mem=1Gi,weight=300,cap=30%,group=x-0", f"{A}:mem=2Gi,weight=1,cap=100%,group=y-0"
    assert merge((first, second, f"{B}:mem=1Gi,group=x-1")) == Share(
        None, ((A, GpuShare(3 << 30, cap=1000, weight=301)), (B, GpuShare(1 << 30))), group="x-0+x-1+y-0"
    )
    assert merge((first, first)) == parse(first), "two hooks that say the same are one"


def test_groups_with_one_amount_in_common_are_found() -> None:
    assert have_common("x", "x")
    assert have_common("x+y", "y")
    assert not have_common("x+y", "xy")
    assert not have_common("", "")
    assert not have_common("", "x")


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(ShareRequest(annotation="mem=1Gi,guard=require"), id="annotation"),
        pytest.param(ShareRequest(option="guard=require;mem=1Gi"), id="option"),
        pytest.param(ShareRequest(environment={"NVC_SHARE": "mem=1Gi,guard=require"}), id="variable"),
    ],
)
def test_only_fixed_settings_require_the_guard(request_: ShareRequest) -> None:
    with pytest.raises(InputError, match="guard=require is not accepted"):
        requested(Policy(), request_)


def test_fixed_settings_require_the_guard_whatever_the_nodes_rule_is() -> None:
    fixed = ShareRequest(fixed=(f"{A}:mem=1Gi,guard=require", f"{B}:mem=1Gi"))
    for selection in (None, Selection(gpus=GPUS)):
        found = preview(Policy(guard="off"), fixed, selection)
        assert found is not None
        assert "require" == guarded(Policy(guard="off"), found).guard
    found = preview(Policy(guard="off"), ShareRequest(fixed=(f"{A}:mem=1Gi",)), Selection(gpus=GPUS))
    assert found is not None
    assert "off" == guarded(Policy(guard="off"), found).guard


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((f"{A}:mem=1Gi,guard=auto",), "guard='auto' is unknown"),
        ((f"{A}:mem=1Gi,group=a", f"{A}:mem=2Gi"), "has mem=1Gi and mem=2Gi"),
        ((f"{A}:mem=1Gi,group=a", f"{A}:mem=1Gi"), "has mem=1Gi and mem=1Gi"),
        ((f"{A}:mem=1Gi,group=a", f"{A}:mem=50%,group=b"), "do not add up"),
        ((f"{A}:mem=1Gi,group=a", f"{A}:mem=1Gi,group=b,priority=low"), "do not add up"),
        ((f"{A}:mem=1Gi", f"{A.lower().replace('gpu', 'GPU')}:mem=2Gi"), "has mem=1Gi and mem=2Gi"),
        (("mem=1Gi", "mem=2Gi"), "all GPUs have"),
        (("off", "mem=2Gi"), "off stands beside"),
        (("mem=2Gi,group=a", f"{A}:mem=1Gi,group=b"), "groups a and b in one container"),
        (("mem=2Gi", ""), "a part is empty"),
        ((f"{A}:mem=1Gi", "0:mem=2Gi"), "named twice"),
        ((f"{A}:mem=1Gi", "GPU-ffffffff-ffff-ffff-ffff-ffffffffffff:mem=2Gi"), "the container has no GPU"),
    ],
)
def test_hooks_that_contradict_each_other_are_refused(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        preview(Policy(), ShareRequest(fixed=texts), Selection(gpus=GPUS))
    assert caught.value.message.startswith(FIXED)
    assert caught.value.hint


def test_the_maximum_holds_for_fixed_settings() -> None:
    request = ShareRequest(fixed=(f"{A}:mem=9Gi",))
    with pytest.raises(InputError, match="more than this node gives"):
        preview(Policy(maximum=parse_gpu("mem=8Gi")), request, Selection(gpus=GPUS[:1]))
    found = preview(Policy(maximum=parse_gpu("mem=8Gi"), clamp=True), request, Selection(gpus=GPUS[:1]))
    assert found is not None
    assert found.gpus[0].memory == 8 << 30


def test_an_annotation_does_not_take_fixed_settings_out_of_the_guard() -> None:
    assert leaves_guard(Policy(allow_guard_off=True), EVERY.replace(fixed=()))
    assert not leaves_guard(Policy(allow_guard_off=True), EVERY)
    assert not leaves_guard(Policy(), EVERY.replace(fixed=()))
