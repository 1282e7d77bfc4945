"""What nvc-runtime predicts of a share before the devices are known is what the share step gives."""

from __future__ import annotations

from itertools import product

import pytest

from nvc.base.errors import InputError
from nvc.model import TEGRA, DriverInfo, Gpu, Selection
from nvc.request.injection import ShareRequest
from nvc.share.limits import MAX_GPUS
from nvc.share.policy import DEFAULT, MEMORY_ONLY, Policy
from nvc.share.preview import preview
from nvc.share.spec import parse_gpu
from tests.support.inventories import gpu, mig_device

HALF = parse_gpu("mem=50%")


def driver(version: str, platform: str = "") -> DriverInfo:
    return DriverInfo(version, "13.0", (), (), (), (), (), (), platform)


def gpus(count: int) -> tuple[Gpu, ...]:
    made = (gpu(index, f"00000000:{index:02x}:00.0", f"GPU-{index}") for index in range(count))
    return tuple(one.replace(memory=80 << 30) for one in made)


WHOLE = Selection(gpus=gpus(2))
MIG = Selection(gpus=(gpus(1)[0].replace(mig_devices=(mig_device(0, 0, 1, 0, "MIG-0"),)),))
POLICIES = (
    Policy(),
    Policy(default=HALF),
    Policy(default=HALF, clamp=True),
    Policy(default=HALF, allow_off=True),
    Policy(maximum=HALF),
    Policy(maximum=parse_gpu("mem=100%")),
    Policy(variables=False),
    Policy(admission="requests"),
)
REQUESTS = (
    ShareRequest(),
    ShareRequest(option="mem=1Gi"),
    ShareRequest(annotation="off"),
    ShareRequest("weight=3", "off"),
    ShareRequest(environment={"NVC_SHARE": "cap=20%"}),
    ShareRequest(environment={"CGPU_DISABLE": "true"}),
)


@pytest.mark.parametrize(("policy", "request_"), [*product(POLICIES, REQUESTS)])
def test_without_devices_it_predicts_what_the_devices_confirm(policy: Policy, request_: ShareRequest) -> None:
    expected = preview(policy, request_)
    for selection in (WHOLE, MIG):
        try:
            found = preview(policy, request_, selection)
        except InputError:
            continue  # the share step refuses the container: no guard is needed
        if expected is None:
            assert found is None
        elif expected.source != DEFAULT:
            assert found is not None
        if found is not None:
            assert expected is not None
            assert (found.source, len(found.gpus)) == (expected.source, len(selection.gpus))


def test_a_platform_without_shares_refuses_a_request_and_drops_the_default() -> None:
    warnings: list[str] = []
    tegra = driver("540.4.0", TEGRA)
    with pytest.raises(InputError, match=rf"--share: shares are not for {TEGRA}"):
        preview(Policy(), ShareRequest(option="mem=1Gi"), WHOLE, tegra)
    assert preview(Policy(default=HALF), ShareRequest(), WHOLE, tegra, warnings.append) is None
    assert warnings == [
        f"shares are not for {TEGRA}: its driver is not NVIDIA's ordinary one; the node's default is left out"
    ]
    assert preview(Policy(), ShareRequest(), WHOLE, tegra) is None


@pytest.mark.parametrize("lost", ["cap=50%", "weight=3", "priority=low", "group=a"])
@pytest.mark.parametrize("source", ["fixed", "default"])
@pytest.mark.parametrize("version", ["615.65.06", "470.82.01", "600.1", ""])
def test_what_needs_a_known_driver_is_refused_with_another(lost: str, source: str, version: str) -> None:
    """Attack (P6): the container started, with a line in the debug log, and was neither capped nor weighed."""
    if source == "default" and "group" in lost:
        return
    policy = Policy(default=parse_gpu(f"mem=1Gi,{lost}")) if source == "default" else Policy()
    request = ShareRequest(fixed=(f"mem=1Gi,{lost}",)) if source == "fixed" else ShareRequest()
    with pytest.raises(
        InputError, match=f"{lost} cannot be held: driver {version} is not known \\(535 to 599 are"
    ) as caught:
        preview(policy, request, WHOLE, driver(version))
    assert "unknown-driver" in caught.value.hint
    assert preview(policy, request, WHOLE, driver("599.1")) is not None

    warnings: list[str] = []
    allowed = policy.replace(unknown_driver=MEMORY_ONLY)
    if "group" in lost:
        with pytest.raises(InputError, match="group=a cannot be held"):
            preview(allowed, request, WHOLE, driver(version))
        return
    found = preview(allowed, request, WHOLE, driver(version), warnings.append)
    assert found is not None
    assert found.text == "mem=1Gi,cap=100%", "what is not held is not granted"
    assert {(one.memory, one.cap, one.weight, one.priority) for one in found.gpus} == {(1 << 30, 1000, 0, "normal")}
    assert f"and {lost} has no effect" in warnings[-1]


def test_memory_alone_is_given_with_a_driver_that_is_not_known() -> None:
    warnings: list[str] = []
    assert preview(Policy(), ShareRequest(option="mem=1Gi"), WHOLE, driver("615.1"), warnings.append) is not None
    assert warnings == ["driver 615.1 is not known (535 to 599 are): memory is held where programs call CUDA"]


def test_more_gpus_than_a_limits_file_holds_are_refused() -> None:
    request = ShareRequest(option="weight=3")
    assert preview(Policy(), request, Selection(gpus=gpus(MAX_GPUS))) is not None
    with pytest.raises(InputError, match="33 GPUs are too many for a share"):
        preview(Policy(), request, Selection(gpus=gpus(MAX_GPUS + 1)))


def test_warnings_reach_the_caller_also_without_a_share() -> None:
    warnings: list[str] = []
    policy = Policy(default=HALF, clamp=True)
    assert preview(policy, ShareRequest(annotation="off"), WHOLE, warn=warnings.append) is not None
    assert warnings == ["nvc.share: off is not allowed on this node; the default holds"]


def test_a_malformed_request_is_refused_without_devices() -> None:
    with pytest.raises(InputError, match=r"nvc\.share: share: 'mem' is not a setting"):
        preview(Policy(), ShareRequest("mem"))


def test_a_range_is_not_given_with_a_driver_that_is_not_known() -> None:
    for policy in (Policy(), Policy(unknown_driver=MEMORY_ONLY)):
        with pytest.raises(InputError, match=r"mem=1Gi\.\.2Gi cannot be held"):
            preview(policy, ShareRequest("mem=1Gi..2Gi"), WHOLE, driver("700.10"))
        with pytest.raises(InputError, match="idle=60s cannot be held"):
            preview(policy, ShareRequest("idle=60s"), WHOLE, driver("700.10"))
