"""What the driver publishes of the machine: slices, taints, health; and what disturbs it."""

from __future__ import annotations

from nvc.kube import wire
from nvc.kube.devices import Slice, joined
from tests.nvc.kube.conftest import NODE, SHARE, Bed, again, device_of, generations, published
from tests.support.leftovers import wait_until


def test_slices_come_back_within_seconds_and_with_the_same_generation(bed: Bed) -> None:
    bed.start()
    generation = published(bed)
    for _ in range(3):
        bed.api.forget_slices()
        wait_until(lambda: len(bed.api.slices) == 8, seconds=15)
    assert {generation} == generations(bed)
    name = sorted(bed.api.slices)[3]
    with bed.api.lock:
        bed.api._change("DELETED", bed.api.slices.pop(name))
    wait_until(lambda: name in bed.api.slices, seconds=15)
    assert {generation} == generations(bed)


def test_all_gpus_are_one_slice_where_schedulers_take_that_and_each_change_is_one_write(bed: Bed) -> None:
    bed.api.kubernetes = "v1.36.0"
    bed.start()
    [one] = wait_until(lambda: list(bed.api.slices.values()))
    assert [f"gpu-{number}" for number in range(8)] == [device["name"] for device in one["spec"]["devices"]]
    assert 1 == one["spec"]["pool"]["resourceSliceCount"]
    with bed.kernel_log.open("a") as log:
        log.write(f"3,2,2,-;NVRM: Xid (PCI:{bed.gpus[2].bus_id[4:-2]}): 79, GPU has fallen off the bus.\n")
    wait_until(lambda: device_of(bed, "gpu-2").get("taints"))
    asked = [method for method, path in bed.api.asked if "resourceslices" in path and method != "GET"]
    assert ["POST", "PUT"] == asked


def test_the_api_server_lists_what_it_has_in_memory_and_the_newest_after_a_conflict(bed: Bed) -> None:
    """The newest are to be read from etcd. An older list is put right by the watch, or by a conflict."""
    first = bed.start()
    generation = published(bed)
    bed.stop(first)
    assert ["0"] == bed.api.lists
    bed.api.remembered = "1", []  # as if none had been published yet
    bed.start()
    wait_until(lambda: len(bed.api.lists) == 3)
    assert ["0", "0", ""] == bed.api.lists
    assert generation == published(bed)


def test_slices_become_one_when_the_api_server_was_upgraded(bed: Bed) -> None:
    running = bed.start()
    generation = published(bed)
    bed.api.kubernetes = "v1.36.0"
    running.driver._publisher.sync()  # as when a watch is begun again
    assert 1 == len(bed.api.slices)
    assert {generation + 1} == generations(bed)


def test_an_api_server_that_does_not_tell_its_version_gets_a_slice_for_each_gpu(bed: Bed) -> None:
    bed.api.kubernetes = "v1.36.0"
    bed.api.refuse["GET", "/version"] = 403
    bed.start()
    published(bed)


def test_a_slice_has_no_more_devices_than_may_have_taints_and_a_gpus_stay_together() -> None:
    rows = [Slice(f"gpu-{gpu}", tuple({"name": f"mig-{gpu}-{part}"} for part in range(7))) for gpu in range(16)]
    made = joined(rows)
    assert [63, 49] == [len(one.devices) for one in made]
    assert ["gpus-0", "gpus-1"] == [one.name for one in made]
    assert [device for one in rows for device in one.devices] == [device for one in made for device in one.devices]


def test_a_slice_that_somebody_changed_is_put_right(bed: Bed) -> None:
    bed.start()
    generation = published(bed)
    name = sorted(bed.api.slices)[0]
    with bed.api.lock:
        changed = {**bed.api.slices[name], "spec": {**bed.api.slices[name]["spec"], "devices": []}}
        bed.api.put(name, changed, "MODIFIED")
    wait_until(lambda: bed.api.slices[name]["spec"]["devices"])
    assert published(bed) > generation


def test_slices_are_listed_once_and_then_watched(bed: Bed) -> None:
    bed.start()
    generation = published(bed)
    wait_until(lambda: _reads(bed) == 2)
    bed.api.forget_slices()
    assert generation == published(bed)
    assert 2 == _reads(bed), "a list, a watch"
    nodes = [path for method, path in bed.api.asked if path.startswith("/api/v1/nodes/")]
    assert 1 == len(nodes)


def test_an_event_that_is_older_than_what_was_written_since_changes_nothing(bed: Bed) -> None:
    bed.start()
    published(bed)
    name, other = sorted(bed.api.slices)[:2]
    with bed.api.lock:
        stale = {**bed.api.slices[name], "spec": {**bed.api.slices[name]["spec"], "devices": []}}
        bed.api.put(name, stale, "MODIFIED")
    wait_until(lambda: bed.api.slices[name]["spec"]["devices"])
    published(bed)
    asked = len(bed.api.asked)
    with bed.api.lock:
        bed.api._change("MODIFIED", stale)
        bed.api._change("DELETED", stale)
        bed.api._change("DELETED", bed.api.slices.pop(other))
    wait_until(lambda: other in bed.api.slices)
    assert ["POST"] == [method for method, path in bed.api.asked[asked:] if "resourceslices" in path]


def _reads(bed: Bed) -> int:
    return sum(one[0] == "GET" and one[1].endswith("/resourceslices") for one in bed.api.asked)


def test_an_api_server_without_the_gate_is_told_of_and_not_written_to_for_ever(bed: Bed) -> None:
    bed.api.ignores = {"allowMultipleAllocations"}
    running = bed.start()
    generation = published(bed)
    wait_until(lambda: running.events("slices-cut"))
    assert "leaves out allowMultipleAllocations" in running.events("slices-cut")[0]["message"]
    bed.api.forget_slices()
    wait_until(lambda: len(bed.api.slices) == 8)
    assert generation == published(bed)
    puts = [one for one in bed.api.asked if one[0] == "PUT"]
    assert [] == puts


def test_an_api_server_that_is_away_at_the_start_gets_the_slices_later(bed: Bed) -> None:
    bed.api.stop()
    running = bed.start()
    wait_until(lambda: running.events("slices-failed"))
    bed.api.start()
    published(bed)


def test_an_error_of_a_gpu_taints_it_and_its_health_is_told(bed: Bed) -> None:
    bed.start()
    before = published(bed)
    address = bed.gpus[2].bus_id[4:-2]
    stream = iter(bed.kubelet.health())
    assert {1} == set(next(stream).values())
    with bed.kernel_log.open("a") as log:
        log.write(f"3,1,1,-;NVRM: Xid (PCI:{address}): 31, pid=7, an application's own\n")
        log.write(f"3,2,2,-;NVRM: Xid (PCI:{address}): 79, GPU has fallen off the bus.\n")

    assert {"gpu-2"} == {name for name, health in next(stream).items() if health == 2}
    device = wait_until(lambda: device_of(bed, "gpu-2").get("taints"))
    assert [("gpu.nvc.dev/unhealthy", "xid-79", "NoSchedule")] == [
        (one["key"], one["value"], one["effect"]) for one in device
    ]
    after = published(bed)
    assert after > before
    with bed.kernel_log.open("a") as log:
        log.write(f"3,3,3,-;NVRM: Xid (PCI:{address}): 154, GPU recovery action changed from 0x1 to 0x0 (None)\n")
    wait_until(lambda: not device_of(bed, "gpu-2").get("taints"))
    assert {1} == set(next(stream).values())


def test_health_is_served_under_the_old_name_too(bed: Bed) -> None:
    bed.start()
    assert 8 == len(next(iter(bed.kubelet.health(name=wire.HEALTH))))


def test_a_gpu_that_went_is_tainted_and_given_to_nobody(bed: Bed) -> None:
    running = bed.start()
    published(bed)
    uid = bed.api.add_claim([{**SHARE, "device": "gpu-7"}])
    bed.machine.inventory = bed.inventory.replace(gpus=bed.gpus[:7])
    again(running)

    taints = wait_until(lambda: device_of(bed, "gpu-7").get("taints"))
    assert "gone" == taints[0]["value"]
    assert "gpu-7 is not on this node" in bed.kubelet.prepare(("claim", uid))[uid].error


def test_a_driver_that_is_unloaded_takes_no_file_away_and_comes_back(bed: Bed) -> None:
    running = bed.start()
    uid = bed.api.add_claim([SHARE])
    bed.kubelet.prepare(("claim", uid))
    kept, bed.machine.inventory = bed.inventory, None
    again(running)
    wait_until(lambda: device_of(bed, "gpu-0").get("taints"))
    assert "no GPU now" in bed.kubelet.prepare(("claim", uid))[uid].error
    assert bed.file(uid).exists()
    assert "" == bed.kubelet.unprepare(("claim", uid))[uid].error
    bed.machine.inventory = kept
    again(running)
    wait_until(lambda: not device_of(bed, "gpu-0").get("taints"))
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error


def test_another_version_of_the_gpus_driver_is_in_files_and_slices(bed: Bed) -> None:
    running = bed.start()
    generation = published(bed)
    uid = bed.api.add_claim([SHARE])
    bed.kubelet.prepare(("claim", uid))
    head = bed.file(uid).read_text().splitlines()[0]
    driver = bed.inventory.driver
    bed.machine.inventory = bed.inventory.replace(driver=driver.replace(nvrm_version="590.1.02", libraries=()))
    before = (bed.cdi / "nvc.dev-driver.yaml").read_text()
    again(running)

    wait_until(lambda: {"version": "590.1.2"} == device_of(bed, "gpu-0")["attributes"]["driverVersion"])
    assert published(bed) == generation + 1
    assert before != (bed.cdi / "nvc.dev-driver.yaml").read_text()
    assert head == bed.file(uid).read_text().splitlines()[0]


def test_slices_that_could_not_be_published_are_at_a_later_look(bed: Bed) -> None:
    running = bed.start()
    generation = published(bed)
    bed.api.refuse["PUT", "resourceslices"] = 500
    with bed.kernel_log.open("a") as log:
        log.write(f"3,2,2,-;NVRM: Xid (PCI:{bed.gpus[2].bus_id[4:-2]}): 79, GPU has fallen off the bus.\n")
    wait_until(lambda: running.events("slices-failed"))
    bed.api.refuse.clear()
    wait_until(lambda: device_of(bed, "gpu-2").get("taints"), seconds=15)
    assert published(bed) > generation


def test_slices_belong_to_the_node(bed: Bed) -> None:
    bed.start()
    published(bed)
    owners = [one["metadata"]["ownerReferences"] for one in bed.api.slices.values()]
    assert [[{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": f"uid-of-{NODE}"}]] * 8 == owners
