"""What a claim says and what it cannot: parameters, amounts, other drivers' results; errors of GPUs in the log."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.guard.scheduling import Tenant, decide, expected
from nvc.kube import claims, parameters, quantity, xids
from nvc.kube.names import COMPUTE_WHOLE
from nvc.kube.parameters import Parameters
from nvc.kube.prepare import settings

UID = "5b0ddbc6-5a1e-4b4a-9b9a-0a2f4e6c8d10"
ROW = {"driver": "gpu.nvc.dev", "pool": "node-a", "request": "gpu", "device": "gpu-0"}


def config(source: str = "FromClaim", requests: tuple[str, ...] = (), **said: Any) -> dict[str, Any]:
    data = {"apiVersion": "nvc.dev/v1", "kind": "Share", **said}
    return {"source": source, "requests": list(requests), "opaque": {"driver": "gpu.nvc.dev", "parameters": data}}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, Parameters()),
        ({"cap": "50%"}, Parameters(cap=500)),
        ({"cap": "reservation"}, Parameters(is_reserved=True)),
        ({"cap": "none", "priority": "low"}, Parameters(priority="low")),
        ({"oversubscribe": "on"}, Parameters(oversubscribe=True)),
        ({"oversubscribe": True}, Parameters(oversubscribe=True)),
        ({"oversubscribe": False, "guard": "require"}, Parameters(requires_guard=True)),
    ],
)
def test_parameters(said: dict[str, Any], expected: Parameters) -> None:
    assert expected == parameters.of_request([config(**said)], "gpu", "claim")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"mem": "80Gi"}, "parameter 'mem' is not known"),
        ({"weight": 1000}, "parameter 'weight' is not known"),
        ({"cap": 50}, "cap '50' is not known"),
        ({"cap": "200%"}, "is not a percentage"),
        ({"cap": "50%,mem=80Gi"}, "cap '50%,mem=80Gi' is not known"),
        ({"cap": "50%,mem=90%"}, "cap '50%,mem=90%' is not known"),
        ({"priority": "service"}, "priority 'service' is not known"),
        ({"guard": "off"}, "guard 'off' is not known"),
        ({"oversubscribe": 1}, "oversubscribe '1' is not known"),
        ({"kind": "Other"}, "kind 'Other' are not known"),
        ({"apiVersion": "nvc.dev/v2"}, r"apiVersion 'nvc.dev\\x2fv2'"),
    ],
)
def test_what_is_not_known_is_refused(said: dict[str, Any], message: str) -> None:
    """Attack: settings that are the scheduler's, smuggled in as parameters."""
    with pytest.raises(InputError, match=message) as caught:
        parameters.of_request([config(**said)], "gpu", "claim")
    assert caught.value.hint


def test_a_claim_tightens_what_its_class_says_and_does_not_loosen_it() -> None:
    of_class = config("FromClass", cap="30%", priority="low", guard="require")
    loose, tight = config(cap="none", priority="normal", oversubscribe="on"), config(cap="10%")
    assert Parameters(300, False, "low", False, True) == parameters.of_request([of_class, loose], "gpu", "claim")
    assert 100 == parameters.of_request([of_class, tight], "gpu", "claim").cap


def test_what_a_claim_does_not_say_is_its_classs() -> None:
    of_class = config("FromClass", cap="reservation", priority="high", oversubscribe="on")
    found = {
        key: parameters.of_request([config(**{key: value}), of_class], "gpu", "claim")
        for key, value in {"cap": "50%", "priority": "low", "oversubscribe": "off", "guard": "require"}.items()
    }
    usual = Parameters(1000, True, "high", True)
    assert usual == parameters.of_request([of_class], "gpu", "claim")
    assert {
        "cap": usual.replace(cap=500),
        "priority": usual.replace(priority="low"),
        "oversubscribe": usual.replace(oversubscribe=False),
        "guard": usual.replace(requires_guard=True),
    } == found


@pytest.mark.parametrize(
    "entries",
    [
        [config(priority="high")],
        [config("FromClass", priority="high"), config(priority="high")],
        [config("FromClass", priority="low"), config(priority="high")],
        [config(priority="high"), config(priority="low")],
        [config(requests=("gpu",), priority="high")],
        [config(requests=("gpu/large",), priority="high")],
        [config("", priority="high")],
        [config("fromclass", priority="high")],
        [config("FromClaim", requests=("other",), priority="high"), config("FromClaim", priority="high")],
    ],
    ids=[
        "alone",
        "beside",
        "above",
        "overridden",
        "named",
        "alternative",
        "no-source",
        "another-source",
        "two-entries",
    ],
)
def test_no_claim_takes_time_that_others_have_reserved(entries: list[dict[str, Any]]) -> None:
    """Attack: compute: 1 and priority: high beside compute: 99 had 90 percent of the GPU."""
    with pytest.raises(InputError, match="priority high is a device class's to give") as caught:
        parameters.of_request(entries, "gpu/large", "claim")
    assert "a DeviceClass whose parameters say priority: high" in caught.value.hint


def test_a_class_may_give_a_high_priority() -> None:
    of_class = config("FromClass", ("gpu",), priority="high")
    assert "high" == parameters.of_request([of_class], "gpu", "claim").priority
    assert "normal" == parameters.of_request([of_class], "other", "claim").priority


#: Of each parameter everything that a claim may say.
SAID: dict[str, tuple[Any, ...]] = {
    "cap": (None, "none", "reservation", "100%", "50%", "25%", "10%", "1%"),
    "priority": (None, *parameters._OWN_PRIORITIES),
    "oversubscribe": (None, "on", "off"),
    "guard": (None, "require"),
}


def test_every_parameter_is_in_the_attack() -> None:
    assert set(SAID) == set(parameters._KEYS)


@pytest.mark.parametrize("compute", [10, 30, 50, 70, 90])
@pytest.mark.parametrize("groups", [1, 4])
def test_whatever_a_claim_says_its_neighbour_has_what_it_reserved(compute: int, groups: int) -> None:
    """Attack: the rest of the GPU is a claim's, with every combination of parameters and several processes."""
    victim = scheduled("victim", compute, Parameters())
    for values in itertools.product(*SAID.values()):
        said = {key: value for key, value in zip(SAID, values, strict=True) if value is not None}
        own = parameters.of_request([config(**said)], "gpu", "claim")
        tenants = victim, scheduled("attacker", COMPUTE_WHOLE - compute, own, groups)
        got = expected(tenants, decide(tenants))
        assert got["victim"] >= compute / COMPUTE_WHOLE - 0.005, (said, got)


def scheduled(name: str, compute: int, own: Parameters, groups: int = 1) -> Tenant:
    """The tenant of a claim, as the agent schedules it."""
    share = settings(claims.Result(0, "gpu", "gpu-0", "", 10 << 30, compute, own), 10 << 30)
    return Tenant(name, share.weight, share.cap, share.priority, groups, latency=share.latency)


def test_parameters_are_of_the_requests_that_they_name() -> None:
    found = [config(requests=("a",), cap="10%"), config(requests=("b/large",), cap="20%")]
    caps = [parameters.of_request(found, name, "claim").cap for name in ("a", "a/any", "b/large", "b/small", "c")]
    assert [100, 100, 200, 1000, 1000] == caps
    other = {"source": "FromClaim", "opaque": {"driver": "nic.example", "parameters": {"cap": 1}}}
    assert Parameters() == parameters.of_request([other], "gpu", "claim")


def claim(*rows: dict[str, Any], uid: str = UID) -> claims.Claim:
    status = {"allocation": {"devices": {"results": list(rows)}}}
    return claims.decode({"metadata": {"uid": UID, "namespace": "n", "name": "c"}, "status": status}, uid, "node-a")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "pool": "node-b"}, "is of pool node-b, and this is node-a"),
        ({**ROW, "adminAccess": True}, "adminAccess is not for GPUs"),
        ({**ROW, "driver": "other"}, "nothing of gpu.nvc.dev is allocated"),
        ({**ROW, "consumedCapacity": {"memory": "1Gi"}}, "has memory, not memory and compute"),
        ({**ROW, "consumedCapacity": {"memory": "-1", "compute": "0"}}, "no quantity"),
        ({**ROW, "consumedCapacity": {"memory": "1e99", "compute": "0"}}, "no quantity"),
    ],
)
def test_results_that_are_not_ours_to_give_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        claim(row)


def test_results_keep_their_place_among_those_of_other_drivers() -> None:
    found = claim({"driver": "nic.example"}, {**ROW, "request": "gpu/large"})
    assert [(1, "gpu/large", "gpu")] == [(one.number, one.request, one.main_request) for one in found.results]


@pytest.mark.parametrize("uid", ["", "..", f"{UID}/..", UID.upper(), f"{UID}\n"])
def test_a_uid_that_could_name_another_file_is_refused(uid: str) -> None:
    with pytest.raises(InputError, match="is no uid of a claim"):
        claims.check_uid(uid)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("10Gi", 10 << 30), ("1Ei", 1 << 60), ("1500M", 1_500_000_000), ("1E", 10**18), ("1500m", 2), (7, 7)),
        *(("1e3", 1000), ("1E3", 1000), ("1.5e1", 15), ("+.5k", 500), ("2.", 2), ("0", 0), ("1e-9", 1)),
        ("1.000000000000000000000000000000000001", 2),
    ],
)
def test_quantities(text: object, size: int) -> None:
    assert size == quantity.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        # A power of ten with so many digits took half a minute, or was an ArithmeticError.
        *("1e999999", "1e9999999", "1e-9999999", "0e999999", "1e1000000000000000000000", "1e99"),
        *("9" * 40, "9" * 41, "1" * 5000, str(1 << 63), 1 << 63, 10**400, -1, "-1", "-0.5", True, 1.5, None, ""),
        # Python's numbers, and no quantities.
        *("1_000", " 1", "1\n", "NaN", "Infinity", "-Infinity", "sNaN", "\u0661", "1/2", "0x10"),
        *("Gi", ".", "e3", "1e", "1e3Gi", "1 Gi", "1gi", "1K", "1mm", "1Zi"),
    ],
)
def test_what_is_no_quantity_is_refused_at_once(text: object) -> None:
    begun = time.process_time()
    with pytest.raises(InputError, match="no quantity"):
        quantity.parse(text)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 3 << 29, 80 << 30, (80 << 30) - (1 << 20)])
def test_memory_is_written_as_the_api_server_does(size: int) -> None:
    assert size == quantity.parse(quantity.write_memory(size))


def test_an_error_stays_until_the_gpu_is_mended() -> None:
    log = xids.XidLog()

    def take(text: str) -> None:
        log.take(f"4,1,0,-;{text}".encode())

    take("NVRM: Xid (PCI:0000:65:00): 43, pid=1, an application's")
    assert {} == log.problems
    take("NVRM: Xid (PCI:0000:65:00): 48, DBE")
    take("NVRM: Xid (PCI:0000:66:00): 79, fallen off")
    take("NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert {"0000:65:00.0": "xid-48", "0000:66:00.0": "xid-79"} == log.problems
    take("NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert {"0000:66:00.0": "xid-79"} == log.problems
    take("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04")
    assert {} == log.problems
