"""The node's rules, applied to what a container asks for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import InputError
from nvc.model import Gpu
from nvc.request.injection import ShareRequest
from nvc.share import policy as rules_of_the_node
from nvc.share import policyfile
from nvc.share.model import Resolved, ResolvedGpu
from nvc.share.policy import Policy, change, decode
from nvc.share.sources import requested
from nvc.share.spec import parse, parse_gpu
from tests.support.inventories import gpu, mig_device

GIB = 1 << 30
FIRST, SECOND = (
    gpu(index, f"00000000:{index:02x}:00.0", f"GPU-00000000-0000-0000-0000-00000000000{index}").replace(memory=80 * GIB)
    for index in (2, 5)
)


def rules(**settings: Any) -> Policy:
    return decode(settings, "config.toml")


def decide(policy: Policy, gpus: list[Gpu], *, has_mig: bool = False, **sources: Any) -> Resolved:
    return rules_of_the_node.decide(policy, gpus, requested(policy, ShareRequest(**sources)), has_mig=has_mig)


def got(policy: Policy, text: str = "", **more: Any) -> ResolvedGpu:
    found = decide(policy, [FIRST], annotation=text, **more)
    assert len(found.gpus) == 1
    return found.gpus[0]


def test_without_rules_and_requests_there_is_no_share() -> None:
    assert Resolved() == decide(Policy(), [FIRST, SECOND], environment={"NVIDIA_VISIBLE_DEVICES": "all"})


def test_fixed_settings_are_before_the_option_before_what_users_say() -> None:
    """Root sets the first two, also in a CDI specification; any user that starts containers sets the others."""
    sources = {
        "fixed": ("weight=4",),
        "option": "weight=3",
        "annotation": "weight=2",
        "environment": {"NVC_SHARE": "weight=1"},
    }
    weights = []
    while sources:
        weights.append(decide(Policy(), [FIRST], **sources).gpus[0].weight)
        del sources[next(iter(sources))]
    assert [4, 3, 1, 1] == weights


def test_what_was_granted_is_a_share_spec() -> None:
    same = decide(Policy(), [FIRST, SECOND], annotation="mem=50%,cap=30%,weight=4")
    assert "mem=40Gi,weight=4,cap=30%" == same.text
    assert "nvc.share" == same.source
    other = decide(Policy(), [FIRST, SECOND], annotation="mem=1Gi;5:mem=2Gi")
    assert f"{FIRST.uuid}:mem=1Gi,cap=100%;{SECOND.uuid}:mem=2Gi,cap=100%" == other.text
    assert parse(other.text)


@pytest.mark.parametrize("selector", ["5", "#1", SECOND.uuid, "0000:05:00.0"])
def test_a_gpu_is_named_by_index_position_uuid_or_bus_id(selector: str) -> None:
    found = decide(Policy(), [FIRST, SECOND], annotation=f"weight=3;{selector}:mem=2Gi")
    assert [(0, 3), (2 * GIB, 3)] == [(one.memory, one.weight) for one in found.gpus]


@pytest.mark.parametrize("selector", ["0", "#2", "GPU-00000000-0000-0000-0000-000000000009", "0000:09:00.0"])
def test_a_gpu_that_the_container_does_not_get_is_a_mistake(selector: str) -> None:
    with pytest.raises(InputError, match="has no GPU"):
        decide(Policy(), [FIRST, SECOND], annotation=f"{selector}:mem=2Gi")


def test_two_names_of_one_gpu_are_a_mistake() -> None:
    with pytest.raises(InputError, match="named twice"):
        decide(Policy(), [FIRST], annotation=f"2:mem=2Gi;{FIRST.uuid}:cap=5%")


def test_a_dialect_may_name_gpus_that_are_not_there() -> None:
    found = decide(Policy(), [FIRST], environment={f"CUDA_DEVICE_MEMORY_LIMIT_{i}": "1g" for i in range(3)})
    assert [GIB] == [one.memory for one in found.gpus]
    assert len(found.warnings) == 2


def test_the_default_is_for_words_that_are_not_said() -> None:
    policy = rules(default="mem=50%,cap=50%,priority=low")
    assert ResolvedGpu(FIRST.uuid, 2, 40 * GIB, 500, 0, "low") == got(policy)
    assert ResolvedGpu(FIRST.uuid, 2, GIB, 500, 0, "low") == got(policy, "mem=1Gi")
    assert ResolvedGpu(FIRST.uuid, 2, 0, 1000, 0, "normal") == got(policy, "mem=100%,cap=100%,priority=normal")


def test_the_maximum_holds_without_a_request() -> None:
    policy = rules(maximum="mem=25%,cap=40%,weight=5,priority=low,oversubscribe=off")
    assert ResolvedGpu(FIRST.uuid, 2, 20 * GIB, 400, 5, "low") == got(policy)


@pytest.mark.parametrize(
    "word", ["mem=20.1Gi", "mem=26%", "mem=100%", "cap=41%", "weight=6", "priority=normal", "oversubscribe=on"]
)
def test_more_than_the_maximum_is_refused_or_cut(word: str) -> None:
    most = {"maximum": "mem=25%,cap=40%,weight=5,priority=low,oversubscribe=off"}
    with pytest.raises(InputError) as caught:
        got(rules(**most), word)
    assert f"{word.partition('=')[0]}=" in str(caught.value)
    assert "more than this node gives" in str(caught.value)
    cut = decide(rules(**most, clamp=True), [FIRST], annotation=word)
    assert (ResolvedGpu(FIRST.uuid, 2, 20 * GIB, 400, 5, "low"),) == cut.gpus
    assert len(cut.warnings) == 1


@pytest.mark.parametrize("source", ["annotation", "option", "environment", "fixed"])
def test_the_maximum_holds_for_every_source(source: str) -> None:
    asked: Any = {"environment": {"NVC_SHARE": "mem=50Gi"}, "fixed": ("mem=50Gi",)}.get(source, "mem=50Gi")
    with pytest.raises(InputError, match="more than this node gives"):
        decide(rules(maximum="mem=10Gi"), [FIRST], **{source: asked})


def test_off_needs_to_be_allowed_where_there_are_rules() -> None:
    assert not decide(Policy(), [FIRST], annotation="off")
    assert not decide(rules(default="mem=1Gi", **{"allow-off": True}), [FIRST], annotation="off")
    assert not decide(rules(default="mem=1Gi", allow_off=True), [FIRST], environment={"CGPU_DISABLE": "true"})
    for environment in ({"NVC_SHARE": "off"}, {"CUDA_DISABLE_CONTROL": "true"}, {"CGPU_DISABLE": "1"}):
        with pytest.raises(InputError, match="off is not allowed"):
            decide(rules(default="mem=1Gi"), [FIRST], environment=environment)
        clamped = decide(rules(default="mem=1Gi", clamp=True), [FIRST], environment=environment)
        assert ([GIB], 1) == ([one.memory for one in clamped.gpus], len(clamped.warnings))


def test_the_environment_may_be_left_out() -> None:
    policy = rules(variables=False, default="mem=1Gi")
    assert got(policy, environment={"NVC_SHARE": "nonsense", "CUDA_DISABLE_CONTROL": "true"}).memory == GIB


def test_parts_of_unknown_memory_are_refused() -> None:
    unknown = FIRST.replace(memory=0)
    for policy, text in ((Policy(), "mem=50%"), (rules(maximum="mem=50%"), "weight=2"), (rules(default="mem=50%"), "")):
        with pytest.raises(InputError, match="the memory of GPU 2 is not known"):
            decide(policy, [unknown], annotation=text)
    assert GIB == decide(Policy(), [unknown], annotation="mem=1Gi").gpus[0].memory


def test_more_memory_than_there_is_needs_oversubscription() -> None:
    with pytest.raises(InputError, match="more than GPU 2 has"):
        got(Policy(), "mem=81Gi")
    assert got(Policy(), "mem=81Gi,oversubscribe=on") == ResolvedGpu(FIRST.uuid, 2, 81 * GIB, oversubscribe=True)
    assert got(rules(clamp=True), "mem=81Gi").memory == 0


@pytest.mark.parametrize(
    ("arch", "has_effect"), [("5.2", False), ("6.0", True), ("9.0", True), ("", True), ("?", True)]
)
def test_oversubscription_is_refused_where_it_has_no_effect(arch: str, has_effect: bool) -> None:
    """On a GPU with memory that does not move; at any source's request, and with less memory than there is too."""
    one = FIRST.replace(arch=arch)
    cases = ((Policy(), "mem=81Gi,oversubscribe=on"), (Policy(), "mem=1Gi,oversubscribe=on"))
    for policy, asked in (*cases, (rules(default="mem=1Gi,oversubscribe=on"), "")):
        if has_effect:
            assert decide(policy, [one], annotation=asked).gpus[0].oversubscribe
            continue
        with pytest.raises(InputError, match=r"oversubscribe=on has no effect on GPU 2, .* is 5\.2"):
            decide(policy, [one], annotation=asked)
    forbidden = rules(maximum="oversubscribe=off", clamp=True)
    assert not decide(forbidden, [one], annotation="mem=1Gi,oversubscribe=on").gpus[0].oversubscribe


def test_too_little_memory_for_a_context_is_told() -> None:
    assert decide(Policy(), [FIRST], annotation="mem=500Mi").warnings
    assert not decide(Policy(), [FIRST], annotation="mem=700Mi").warnings


def test_mig_devices_cannot_be_shared_and_rules_leave_them_alone() -> None:
    split = gpu(0, "00000000:01:00.0", "GPU-00000000-0000-0000-0000-000000000000", mig_device(0, 0, 1, 0, "MIG-1"))
    for more in ({"has_mig": True}, {}):
        with pytest.raises(InputError, match="a MIG device cannot be shared"):
            decide(Policy(), [split], annotation="mem=1Gi", **more)
        assert not decide(rules(default="mem=1Gi"), [split], **more)
        assert not decide(Policy(), [split], annotation="off", **more)


@pytest.mark.parametrize("has_mig", [True, False])
@pytest.mark.parametrize("rule", ["default", "maximum"])
def test_a_mig_device_takes_no_whole_gpu_out_of_the_rules(rule: str, has_mig: bool) -> None:
    """Attack: NVIDIA_VISIBLE_DEVICES=2,0:0 had the whole GPU 2, without default, maximum and guard."""
    split = gpu(0, "00000000:01:00.0", "GPU-00000000-0000-0000-0000-000000000000", mig_device(0, 0, 1, 0, "MIG-1"))
    policy = rules(**{rule: "mem=1Gi"})
    found = decide(policy, [FIRST, split], has_mig=has_mig)
    assert [(FIRST.uuid, GIB)] == [(one.uuid, one.memory) for one in found.gpus]
    with pytest.raises(InputError, match="off is not allowed"):
        decide(policy, [FIRST, split], annotation="off", has_mig=has_mig)
    with pytest.raises(InputError, match="a MIG device cannot be shared"):
        decide(policy, [FIRST, split], annotation="mem=1Gi", has_mig=has_mig)


def test_a_container_without_gpus_has_no_share() -> None:
    assert not decide(rules(default="mem=1Gi"), [], annotation="0:mem=1Gi")


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_request_ends_in_a_share_or_a_message(annotation: str, variable: str) -> None:
    try:
        decide(rules(maximum="mem=50%"), [FIRST], annotation=annotation, environment={"NVC_SHARE": variable})
    except InputError as error:
        assert error.hint


@given(
    st.integers(1, 100),
    st.integers(1, 100),
    st.one_of(st.none(), st.integers(1, 80)),
    st.booleans(),
)
def test_no_container_gets_more_than_the_maximum(most: int, cap: int, wanted: int | None, whole: bool) -> None:
    policy = rules(maximum=f"mem={most}%,cap={cap}%", clamp=True)
    text = ",".join((f"mem={wanted}Gi",) * (wanted is not None) + ("cap=100%",) * whole)
    found = decide(policy, [FIRST], annotation=text)
    if most < 100 or cap < 100 or text:
        assert all(one.memory <= 80 * GIB * most // 100 or most == 100 for one in found.gpus)
        assert all(one.cap <= 10 * cap for one in found.gpus)
        assert found
    if most < 100:
        assert all(one.memory for one in found.gpus)


# Live changes.


def test_a_change_keeps_what_is_not_said() -> None:
    now = ResolvedGpu(FIRST.uuid, 2, GIB, 500, 7, "low", True)
    assert now.replace(cap=250) == change(Policy(), None, now, parse_gpu("cap=25%"))
    assert now.replace(memory=40 * GIB) == change(Policy(), FIRST, now, parse_gpu("mem=50%"))
    assert now.replace(weight=3) == change(rules(maximum="mem=5%"), None, now, parse_gpu("weight=3"))
    with pytest.raises(InputError, match="cannot change while"):
        change(Policy(), None, now, parse_gpu("oversubscribe=off"))


def test_a_change_stays_below_the_maximum_unless_forced() -> None:
    now = ResolvedGpu(FIRST.uuid, 2, GIB)
    policy = rules(maximum="mem=2Gi", clamp=True)
    with pytest.raises(InputError, match="more than this node gives"):
        change(policy, None, now, parse_gpu("mem=3Gi"))
    assert 3 * GIB == change(policy, None, now, parse_gpu("mem=3Gi"), force=True).memory


# The file.


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("share = 1", "share is not a table"),
        ("[share]\ndefault = true", "share.default is not a string"),
        ('[share]\nclamp = "yes"', "share.clamp is not a boolean"),
        ('[share]\nmaximums = "mem=1Gi"', "share.maximums is unknown"),
        ('[share]\nmaximum = "mem=lots"', "share.maximum: share: mem='lots'"),
        ('[share]\ndefault = "0:mem=1Gi"', "is not for one GPU"),
        ("[share\n", "not TOML"),
        ("\x80", "not TOML"),
    ],
)
def test_a_mistake_in_the_file_names_the_key(text: str, named: str) -> None:
    with pytest.raises(InputError) as caught:
        policyfile.parse(text.encode("latin-1"), "config.toml")
    assert named in str(caught.value)


def test_the_file_is_read_with_both_readers(tmp_path: Any) -> None:
    simple = tmp_path / "simple.toml"
    simple.write_text('[share]\ndefault = "mem=50%"\nallow-off = true\n')
    other = tmp_path / "other.toml"
    other.write_text("[agent]\nslots = 9\n[share]\ndefault = '''mem=50%'''\nallow_off = true\n")
    assert policyfile.load(str(simple)) == policyfile.load(str(other)) == rules(default="mem=50%", allow_off=True)


def test_a_named_file_must_exist_and_be_a_file(tmp_path: Any) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError):
            policyfile.load(str(path))


def test_an_empty_rule_is_none() -> None:
    assert rules(default="", maximum="off") == Policy()
