"""The driver beside a kubelet and an API server: claims come and go, and what is reported of them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from nvc.cdi import files
from nvc.share import policyfile
from tests.nvc.kube.conftest import NODE, SHARE, Bed, again, generations, published
from tests.support.leftovers import wait_until

WHOLE = {"device": "gpu-1", "shareID": "4b0ddbc6-5a1e-4b4a-9b9a-0a2f4e6c8d10"}


def edits(bed: Bed, uid: str, number: int = 0) -> dict[str, Any]:
    """What the file of a claim has for one device."""
    spec = yaml.safe_load(bed.file(uid).read_text())
    found: dict[str, Any] = next(one for one in spec["devices"] if one["name"] == f"{uid}-{number}")["containerEdits"]
    return found


def test_a_share_becomes_one_file_with_the_gpus_node_and_fixed_settings(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE])

    answer = bed.kubelet.prepare(("claim", uid))[uid]

    assert "" == answer.error
    [device] = answer.devices
    assert ("gpu", NODE, "gpu-0") == (device.request_names[0], device.pool_name, device.device_name)
    assert ["nvc.dev/driver=all", f"nvc.dev/claim={uid}-0"] == list(device.cdi_device_ids)
    assert SHARE["shareID"] == device.share_id
    assert ["/dev/nvidia0"] == [node["path"] for node in edits(bed, uid)["deviceNodes"]]
    [hook] = edits(bed, uid)["hooks"]
    settings = "mem=10Gi,weight=300,cap=100%,priority=normal,oversubscribe=off,guard=require"
    assert [
        "nvc-cdi-hook",
        "share",
        f"--share-fixed={bed.gpus[0].uuid}:{settings},group={uid}-0",
        f"--sim={bed.machine.host.root}",
    ] == hook["args"]
    assert "createContainer" == hook["hookName"]


def test_engines_take_the_files_and_find_everydevice_of(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE, WHOLE])
    answer = bed.kubelet.prepare(("claim", uid))[uid]

    found = files.listing(files.find([str(bed.cdi)]))

    assert () == found.warnings
    assert {name for device in answer.devices for name in device.cdi_device_ids} <= set(found.names)
    static = yaml.safe_load((bed.cdi / "nvc.dev-driver.yaml").read_text())
    assert "mounts" in static["containerEdits"], "what all have is applied once, however many devices name the file"
    assert all("mounts" not in edits(bed, uid, number) for number in (0, 1))


def test_preparing_again_gives_the_same_answer_and_leaves_the_file(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE])
    first = bed.kubelet.prepare(("claim", uid))[uid]
    before = bed.file(uid).stat()

    assert first == bed.kubelet.prepare(("claim", uid))[uid]
    assert (before.st_ino, before.st_mtime_ns) == (bed.file(uid).stat().st_ino, bed.file(uid).stat().st_mtime_ns)


def test_every_claim_has_an_answer_and_a_refusal_says_why(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE])
    other = "00000000-0000-4000-8000-000000000000"

    answer = bed.kubelet.prepare(("claim", uid), ("claim", other), ("missing", other[:-1] + "1"), ("claim", "../../x"))

    assert {uid, other, other[:-1] + "1", "../../x"} == set(answer)
    assert "" == answer[uid].error
    assert f"its uid is {uid}, and {other} was asked for" in answer[other].error
    assert "404" in answer[other[:-1] + "1"].error
    assert "is no uid of a claim" in answer["../../x"].error
    assert [f"nvc.dev-claim_{uid}.yaml", "nvc.dev-driver.yaml"] == sorted(path.name for path in bed.cdi.glob("*.yaml"))
    event = wait_until(lambda: next((one for one in bed.api.events if one["regarding"]["uid"] == other), None))
    assert ("Warning", "space", "claim") == (event["type"], event["metadata"]["namespace"], event["regarding"]["name"])
    assert "was asked for" in event["note"]


def test_claims_of_one_call_are_read_at_a_time(bed: Bed) -> None:
    bed.start()
    uids = {name: bed.api.add_claim([SHARE], name=name) for name in ("c0", "c1")}
    with bed.api.together("/resourceclaims/c", 2):
        answer = bed.kubelet.prepare(*uids.items())
    assert ["", ""] == [answer[uid].error for uid in uids.values()]


def test_unprepare_needs_neither_the_api_server_nor_a_claim(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE])
    bed.kubelet.prepare(("claim", uid))
    bed.api.stop()
    try:
        never = "00000000-0000-4000-8000-000000000000"
        answer = bed.kubelet.unprepare(("claim", uid), ("never", never), ("claim", uid))
        assert {uid: "", never: ""} == {name: one.error for name, one in answer.items()}
        assert not bed.file(uid).exists()
        assert "no answer" in bed.kubelet.prepare(("claim", uid))[uid].error
    finally:
        bed.api.start()
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error, "it is asked again when the API server is back"


def test_a_whole_gpu_has_no_share_and_what_graphics_needs(bed: Bed) -> None:
    bed.start()
    memory = f"{bed.gpus[1].memory >> 20}Mi"
    found = []
    for row in (WHOLE, {**WHOLE, "consumedCapacity": {"memory": memory, "compute": "0"}}):
        uid = bed.api.add_claim([row])
        assert "" == bed.kubelet.prepare(("claim", uid))[uid].error
        found.append(edits(bed, uid))
        bed.kubelet.unprepare(("claim", uid))
    assert found[0] == found[1]
    nodes = {node["path"] for node in found[0]["deviceNodes"]}
    assert {"/dev/nvidia1", "/dev/nvidia-modeset"} <= nodes
    assert "hooks" not in found[0] or "share" not in str(found[0]["hooks"])


def test_a_whole_gpu_is_under_the_guard_where_its_class_says_so(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([WHOLE], config=[_config("FromClass", guard="require")])
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error
    assert f"mem={bed.gpus[1].memory >> 20}Mi,weight=1000,cap=100%" in str(edits(bed, uid)["hooks"]).replace("Gi", "Gi")


def test_claims_that_do_not_fit_are_refused_with_those_that_are_there(bed: Bed) -> None:
    """The scheduler sums up; this is the last line of defence."""
    bed.start()
    half = bed.gpus[0].memory // 2 >> 20
    rows = [{**SHARE, "consumedCapacity": {"memory": f"{half}Mi", "compute": "50"}}] * 3
    uids = [bed.api.add_claim([row], name=f"c{number}") for number, row in enumerate(rows)]
    errors = [bed.kubelet.prepare((f"c{number}", uid))[uid].error for number, uid in enumerate(uids)]
    assert ["", ""] == errors[:2]
    assert "to space/c0, space/c1 too" in errors[2]
    assert not bed.file(uids[2]).exists()
    whole = bed.api.add_claim([{"device": "gpu-0"}], name="whole")
    assert "gpu-0 has" in bed.kubelet.prepare(("whole", whole))[whole].error
    bed.kubelet.unprepare(("c0", uids[0]))
    assert "" == bed.kubelet.prepare(("c2", uids[2]))[uids[2]].error


def test_compute_is_summed_up_too(bed: Bed) -> None:
    bed.start()
    rows = [{**SHARE, "consumedCapacity": {"memory": "1Gi", "compute": "60"}}] * 2
    first, second = (bed.api.add_claim([row], name=f"c{number}") for number, row in enumerate(rows))
    assert "" == bed.kubelet.prepare(("c0", first))[first].error
    assert "120 percent would be given away" in bed.kubelet.prepare(("c1", second))[second].error


def test_two_shares_of_one_claim_on_one_gpu_have_a_group_each(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE, {**SHARE, "request": "more"}])
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error
    assert [True, True] == [f"group={uid}-{number}" in str(edits(bed, uid, number)) for number in (0, 1)]


def test_the_nodes_maximum_holds_for_what_a_claim_says(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    (bed.cdi.parent / "config.toml").write_text('[share]\nmaximum = "cap=50%"\n')
    monkeypatch.setattr(policyfile, "CONFIG", str(bed.cdi.parent / "config.toml"))
    bed.start()
    uid = bed.api.add_claim([SHARE], config=[_config("FromClaim", cap="80%")])
    error = bed.kubelet.prepare(("claim", uid))[uid].error
    assert "claim space/claim: cap=80% is more than this node gives" in error
    assert not bed.file(uid).exists()


def test_a_high_priority_is_its_classs_and_not_the_claims(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE], config=[_config("FromClaim", priority="high")])
    error = bed.kubelet.prepare(("claim", uid))[uid].error
    assert "priority high is a device class's to give" in error
    assert not bed.file(uid).exists()
    uid = bed.api.add_claim([SHARE], config=[_config("FromClass", priority="high"), _config("FromClaim", cap="50%")])
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error
    assert "weight=300,cap=50%,priority=high" in str(edits(bed, uid)["hooks"])


def test_files_outlive_a_reboot_and_are_made_anew_from_their_records(bed: Bed) -> None:
    running = bed.start()
    uid = bed.api.add_claim([SHARE])
    first = bed.kubelet.prepare(("claim", uid))[uid]
    content = bed.file(uid).read_text()
    bed.stop(running)
    bed.file(uid).write_text(content.splitlines(keepends=True)[0] + "old: driver\n")
    (bed.cdi / f".nvc.dev-claim_{uid}.yaml.0123.tmp").write_text("half")
    (bed.cdi / "nvc.dev-driver.yaml").unlink()
    bed.api.stop()
    try:
        bed.start()
        assert content == bed.file(uid).read_text(), "without the API server"
    finally:
        bed.api.start()
    assert (bed.cdi / "nvc.dev-driver.yaml").exists()
    assert [] == list(bed.cdi.glob("*.tmp")) + list(bed.cdi.glob(".*.tmp"))
    assert first == bed.kubelet.prepare(("claim", uid))[uid]


def test_a_file_that_is_not_ours_is_left_and_refuses_its_claim(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE])
    bed.file(uid).write_text("cdiVersion: 0.5.0\n")
    assert "its first line is not nvc-py's" in bed.kubelet.prepare(("claim", uid))[uid].error
    assert "" == bed.kubelet.unprepare(("claim", uid))[uid].error
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error


def test_a_fault_of_the_program_is_told_once_and_ends_nothing(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    running = bed.start()
    generation = published(bed)
    find = bed.machine.find
    monkeypatch.setattr(bed.machine, "find", lambda: {}["no such key"])
    # Looked up by the driver at its start; before the key changes, which one look of its takes up.
    running.driver._find = bed.machine.find
    again(running)
    told = wait_until(lambda: running.events("warning"))
    assert "internal error: KeyError: 'no such key'" == told[0]["message"]
    uid = bed.api.add_claim([SHARE])
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error, "claims are served"
    time.sleep(0.3)
    assert 1 == len(running.events("warning"))
    driver = bed.inventory.driver
    bed.machine.inventory = bed.inventory.replace(driver=driver.replace(nvrm_version="590.1.02"))
    running.driver._find = find  # the next look finds it: those that failed left the key as it was
    wait_until(lambda: len(bed.api.slices) == 8 and generations(bed) == {generation + 1})


def test_the_claims_status_says_what_is_held(bed: Bed) -> None:
    bed.start()
    uid = bed.api.add_claim([SHARE])
    foreign = {"driver": "nic.example", "pool": "p", "device": "d"}
    bed.api.claims["space", "claim"]["status"]["devices"] = [foreign]
    for _ in range(2):
        bed.kubelet.prepare(("claim", uid))
        there, own = wait_until(
            lambda: (
                len(bed.api.claims["space", "claim"]["status"]["devices"]) == 2
                and bed.api.claims["space", "claim"]["status"]["devices"]
            )
        )
        assert foreign == there
        assert (NODE, "gpu-0", SHARE["shareID"]) == (own["pool"], own["device"], own["shareID"])
        assert ("10Gi", 30) == (own["data"]["memory"], own["data"]["compute"])
        assert [("Ready", "True")] == [(one["type"], one["status"]) for one in own["conditions"]]


def test_without_the_right_to_write_a_status_pods_start(bed: Bed) -> None:
    running = bed.start()
    bed.api.refuse["PATCH", "/status"] = 403
    bed.api.refuse["GET", "/api/v1/nodes"] = 403
    uid = bed.api.add_claim([SHARE])
    assert "" == bed.kubelet.prepare(("claim", uid))[uid].error
    assert "chart's RBAC" in wait_until(lambda: running.events("report-failed"))[0]["hint"]
    published(bed)


def _config(source: str, **parameters: str) -> dict[str, Any]:
    opaque = {"driver": "gpu.nvc.dev", "parameters": {"apiVersion": "nvc.dev/v1", "kind": "Share", **parameters}}
    return {"source": source, "requests": [], "opaque": opaque}
