"""The node's rules about services, memory ranges and idle containers."""

from __future__ import annotations

from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.share.model import ResolvedGpu
from nvc.share.policy import Policy, change
from nvc.share.spec import parse_gpu
from tests.nvc.share.test_policy import FIRST, GIB, decide, got, rules

SERVICE_RULES = {"maximum": "priority=service,latency=0.5ms"}


@pytest.mark.parametrize("source", ["annotation", "environment"])
@pytest.mark.parametrize(
    "rules_", [{}, {"maximum": "mem=50%"}, {"maximum": "priority=high"}, {"default": "priority=high"}]
)
def test_nobody_makes_itself_a_service(source: str, rules_: dict[str, str]) -> None:
    """A container that asks by itself has what root grants: it would make all others wait less long."""
    text = "priority=service,latency=0.4ms"
    asked: Any = {"environment": {"NVC_SHARE": text}}.get(source, text)
    with pytest.raises(InputError, match="priority=service is more than this node gives"):
        decide(rules(**rules_), [FIRST], **{source: asked})
    cut = decide(rules(**rules_, clamp=True), [FIRST], **{source: asked}).gpus[0]
    assert (cut.priority, cut.latency) == ("high", 0)


@pytest.mark.parametrize("source", ["option", "fixed"])
def test_root_makes_a_service_within_the_maximum(source: str) -> None:
    asked: Any = ("priority=service",) if source == "fixed" else "priority=service"
    found = decide(Policy(), [FIRST], **{source: asked}).gpus[0]
    assert (found.priority, found.latency) == ("service", 1000)
    with pytest.raises(InputError, match="priority=service is more than this node gives"):
        decide(rules(maximum="priority=high"), [FIRST], **{source: asked})


def test_a_container_asks_for_less_of_a_service_than_the_node_grants() -> None:
    assert got(rules(**SERVICE_RULES), "weight=3").priority == "normal"
    assert got(rules(**SERVICE_RULES), "priority=service").latency == 1000
    assert got(rules(**SERVICE_RULES), "priority=service,latency=0.5ms").latency == 500
    for policy in (rules(**SERVICE_RULES), rules(maximum="priority=service"), rules(default="priority=service")):
        with pytest.raises(InputError, match=r"latency=0\.4ms is more than this node gives"):
            got(policy, "priority=service,latency=400us")
    clamped = decide(rules(**SERVICE_RULES, clamp=True), [FIRST], annotation="priority=service,latency=400us")
    assert clamped.gpus[0].latency == 500
    assert got(rules(default="priority=service,latency=2ms"), "weight=3").latency == 2000
    assert got(rules(default="priority=service,latency=2ms"), "priority=low").latency == 0


def test_a_latency_is_of_services_and_they_have_no_cap() -> None:
    with pytest.raises(InputError, match="latency=1ms has no effect with priority=high"):
        got(Policy(), "priority=high,latency=1ms")
    with pytest.raises(InputError, match="latency=1ms has no effect"):
        rules(maximum="latency=1ms")
    for policy, text in ((Policy(), "priority=service,cap=50%"), (rules(maximum="cap=50%"), "priority=service")):
        with pytest.raises(InputError, match=r"latency=1ms cannot be kept with cap=50%"):
            decide(policy, [FIRST], option=text)


def test_a_running_service_is_changed_within_its_bounds() -> None:
    now = decide(Policy(), [FIRST], option="priority=service,latency=2ms").gpus[0]
    assert change(Policy(), FIRST, now, parse_gpu("latency=3ms")).latency == 3000
    assert change(Policy(), FIRST, now, parse_gpu("priority=normal")).latency == 0
    with pytest.raises(InputError, match="cannot be kept with cap"):
        change(Policy(), FIRST, now, parse_gpu("cap=50%"))
    with pytest.raises(InputError, match="more than this node gives"):
        change(rules(**SERVICE_RULES), FIRST, now, parse_gpu("latency=400us"))
    assert change(rules(**SERVICE_RULES), FIRST, now, parse_gpu("latency=400us"), force=True).latency == 400


def test_a_range_begins_at_its_request() -> None:
    found = got(Policy(), "mem=10%..50%")
    assert (found.request, found.memory, found.most) == (8 * GIB, 8 * GIB, 40 * GIB)
    assert decide(Policy(), [FIRST], annotation="mem=8Gi..50%").text == "mem=8Gi..40Gi,cap=100%"
    assert got(Policy(), "mem=8Gi..100%").most == 80 * GIB
    assert (got(Policy(), "mem=8Gi..10%").request, got(Policy(), "mem=8Gi..10%").memory) == (0, 8 * GIB)


def test_a_range_raises_no_maximum() -> None:
    for policy, text in ((rules(maximum="mem=25%"), "mem=1Gi..21Gi"), (rules(maximum="mem=4Gi..25%"), "mem=5Gi..20Gi")):
        with pytest.raises(InputError, match=r"mem=.* is more than this node gives"):
            got(policy, text)
    cut = got(rules(maximum="mem=25%", clamp=True), "mem=30Gi..60Gi")
    assert (cut.request, cut.memory) == (0, 20 * GIB)
    cut = got(rules(maximum="mem=4Gi..25%", clamp=True), "mem=18Gi")
    assert (cut.request, cut.most) == (4 * GIB, 18 * GIB)


def test_a_maximum_with_a_range_bounds_what_is_guaranteed() -> None:
    policy = rules(maximum="mem=4Gi..40Gi")
    assert (got(policy).request, got(policy).most) == (4 * GIB, 40 * GIB)
    assert (got(policy, "mem=2Gi..10Gi").request, got(policy, "mem=2Gi..10Gi").most) == (2 * GIB, 10 * GIB)
    assert (got(policy, "mem=3Gi").request, got(policy, "mem=3Gi").memory) == (0, 3 * GIB)
    with pytest.raises(InputError, match="at most a request of 4Gi"):
        raise_with_hint(policy, "mem=10Gi")


def raise_with_hint(policy: Policy, text: str) -> None:
    try:
        got(policy, text)
    except InputError as error:
        raise InputError(f"{error}: {error.hint}") from None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mem=50%..8Gi", "guarantees more than it allows"),
        ("mem=8Gi..90Gi", "is more than GPU 2 has"),
        ("mem=90Gi..100%", "mem=90Gi..100% is more than GPU 2 has"),
        ("mem=8Gi..40Gi,oversubscribe=on", "exclude each other"),
    ],
)
def test_what_a_range_cannot_be_is_said(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        got(Policy(), text)


def test_a_range_of_a_gpu_of_unknown_memory_needs_an_end() -> None:
    unknown = FIRST.replace(memory=0)
    assert decide(Policy(), [unknown], annotation="mem=8Gi..40Gi").gpus[0].most == 40 * GIB
    with pytest.raises(InputError, match="a range needs an end"):
        decide(Policy(), [unknown], annotation="mem=8Gi..100%")


def test_a_running_containers_limit_stays_where_the_new_range_lets_it() -> None:
    now = ResolvedGpu(FIRST.uuid, 2, 20 * GIB, request=8 * GIB, most=40 * GIB)

    def after(text: str) -> tuple[int, int, int]:
        found = change(Policy(), FIRST, now, parse_gpu(text))
        return found.request // GIB, found.memory // GIB, found.most // GIB

    assert after("mem=4Gi..30Gi") == (4, 20, 30)
    assert after("mem=24Gi..30Gi") == (24, 24, 30)
    assert after("mem=4Gi..10Gi") == (4, 10, 10)
    assert after("mem=10Gi") == (0, 10, 0)
    assert after("weight=3") == (8, 20, 40)


def test_a_node_that_admits_by_requests_gives_every_container_a_share() -> None:
    policy = rules(admission="requests")
    assert decide(policy, [FIRST]).text == "mem=100%,cap=100%"
    with pytest.raises(InputError, match="off is not allowed"):
        decide(policy, [FIRST], annotation="off")
    with pytest.raises(InputError, match="allow-off cannot be true"):
        rules(admission="requests", **{"allow-off": True})
    with pytest.raises(InputError, match="is none of ranges, requests"):
        rules(admission="limits")


def test_no_container_is_idle_for_longer_than_the_maximum() -> None:
    assert got(rules(default="idle=10m")).idle == 600
    assert got(rules(default="idle=10m"), "idle=1h").idle == 3600
    assert got(rules(maximum="idle=10m")).idle == 600
    assert got(rules(maximum="idle=10m", clamp=True), "idle=1h").idle == 600
    with pytest.raises(InputError, match="idle=3600s is more than this node gives"):
        got(rules(maximum="idle=10m"), "idle=1h")
