"""Claims that are in use, as the pre-delete hook lists them."""

from __future__ import annotations

from typing import Any

from nvc.kube.in_use import users
from nvc.kube.names import DRIVER


def claim(name: str, *, driver: str = DRIVER, pods: tuple[str, ...] = ()) -> dict[str, Any]:
    results = [{"driver": driver, "pool": "node-1", "device": "gpu-0"}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"name": pod} for pod in pods]}
    return {"metadata": {"namespace": "team", "name": name}, "status": status}


def test_claims_of_pods_are_listed() -> None:
    assert users([claim("b", pods=("two", "one")), claim("a", pods=("three",))]) == (
        "team/a on node-1: three",
        "team/b on node-1: one, two",
    )


def test_what_no_pod_has_and_what_is_another_drivers_is_not() -> None:
    unallocated: dict[str, Any] = {"metadata": {"namespace": "team", "name": "new"}}

    assert users([claim("idle"), claim("other", driver="gpu.example.com", pods=("one",)), unallocated]) == ()
