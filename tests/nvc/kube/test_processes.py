"""Processes of the driver beside and after each other: sockets, registration, whose slices are published."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from nvc.kube import kubelet
from tests.nvc.kube.conftest import SHARE, Bed, device_of, published
from tests.support.leftovers import wait_until


def test_the_kubelets_registration_is_in_a_file(bed: Bed) -> None:
    """A pod's startup probe looks for it: only then the pod of the version before may go."""
    mark = bed.cdi.parent / "registered"
    bed.start(registered=str(mark))
    assert not mark.exists()
    bed.kubelet.register()
    assert mark.exists()


def test_a_process_that_ends_answers_until_the_kubelet_has_forgotten_it(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten, waits = threading.Event(), list[float]()
    sleep = SimpleNamespace(sleep=lambda seconds: waits.append(seconds) or forgotten.wait(60), monotonic=time.monotonic)
    monkeypatch.setattr(kubelet, "time", sleep)
    old = bed.start(instance="old")
    uid = bed.api.add_claim([SHARE])
    endpoint = bed.kubelet.register().endpoint
    ending = threading.Thread(target=bed.stop, args=(old,))
    ending.start()
    wait_until(lambda: not bed.kubelet.registrations())
    assert "" == bed.kubelet.prepare(("claim", uid), endpoint=endpoint)[uid].error
    forgotten.set()
    ending.join()
    assert [kubelet._FORGET_S] == waits


def test_two_processes_serve_while_the_driver_is_upgraded(bed: Bed) -> None:
    old = bed.start(instance="old")
    uid = bed.api.add_claim([SHARE])
    first = bed.kubelet.prepare(("claim", uid))[uid]
    published(bed)
    new = bed.start(instance="new")
    assert ["gpu.nvc.dev-old-reg.sock", "gpu.nvc.dev-new-reg.sock"] == [one.name for one in bed.kubelet.registrations()]
    ends = [bed.kubelet.register(path).endpoint for path in bed.kubelet.registrations()]
    assert [first, first] == [bed.kubelet.prepare(("claim", uid), endpoint=end)[uid] for end in ends]
    bed.kubelet.unprepare(("claim", uid), endpoint=ends[1])
    assert not bed.file(uid).exists(), "what one prepared the other one unprepares"
    bed.stop(old)
    assert ["gpu.nvc.dev-new-reg.sock"] == [one.name for one in bed.kubelet.registrations()]
    assert not Path(ends[0]).exists()
    assert first == bed.kubelet.prepare(("claim", uid))[uid]
    bed.api.forget_slices()
    published(bed)
    # The API server has a slice before the answer reaches the process, which says what it published when it has all.
    wait_until(lambda: new.events("slices"))


def test_only_the_newer_process_publishes_and_the_older_one_after_its_end(bed: Bed) -> None:
    old = bed.start(instance="old")
    published(bed)
    seen = bed.inventory
    bed.machine.inventory = seen.replace(driver=seen.driver.replace(nvrm_version="590.1.02"))
    new = bed.start(instance="new")
    wait_until(lambda: {"version": "590.1.2"} == device_of(bed, "gpu-0")["attributes"]["driverVersion"])
    generation = published(bed)
    told = len(wait_until(lambda: old.events("slices")))
    bed.api.forget_slices()
    assert generation == published(bed)
    assert told == len(old.events("slices"))
    bed.stop(new)
    bed.api.forget_slices()
    published(bed)
    assert {"version": seen.driver.nvrm_version.replace(".0", ".")} == device_of(bed, "gpu-0")["attributes"][
        "driverVersion"
    ]


def test_sockets_of_a_killed_process_are_removed_and_those_of_a_living_one_are_not(bed: Bed) -> None:
    registry = bed.kubelet.directory / "plugins_registry"
    registry.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as other:
        dead.bind(f"{registry}/gpu.nvc.dev-dead-reg.sock")
        other.bind(f"{registry}/other.example-reg.sock")
    bed.start(instance="old")
    bed.start(instance="new")
    assert ["gpu.nvc.dev-new-reg.sock", "gpu.nvc.dev-old-reg.sock", "other.example-reg.sock"] == sorted(
        one.name for one in bed.kubelet.registrations()
    )


def test_the_end_leaves_slices_and_files_and_no_socket(bed: Bed) -> None:
    running = bed.start()
    uid = bed.api.add_claim([SHARE])
    bed.kubelet.prepare(("claim", uid))
    published(bed)
    bed.stop(running)
    assert bed.file(uid).exists()
    assert 8 == len(bed.api.slices)
    assert [] == [name for _, _, names in os.walk(bed.kubelet.directory) for name in names]
