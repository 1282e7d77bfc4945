"""Nothing that nvidia-ctk puts into a spec for the same machine is missing in ours.

toolkit/*.txt has what it puts there, as facts: made by hand with the toolkit of the version that they name, on the
simulated machines. Differences that are meant are here, each with its row of docs/reference/toolkit-differences.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvc.cdi.generate import THEN
from nvc.cdi.spec import CdiEdits, CdiSpec
from tests.nvc.cdi.conftest import PLACE, Machine

TABLES = Path(__file__).with_name("toolkit")
#: Their value -> ours, by a row of toolkit-differences.md that has these words.
MEANT = {"mount /run/": ("mount /var/run/", "links of these paths")}


def facts(spec: CdiSpec) -> Iterator[str]:
    for name, edits in (("-", spec.edits), *((device.name, device.edits) for device in spec.devices)):
        yield from (f"{name} {fact}" for fact in _edits(edits))


def _edits(edits: CdiEdits) -> Iterator[str]:
    yield from (f"env {assignment}" for assignment in edits.env)
    yield from (f"node {node.path}" for node in edits.device_nodes)
    yield from (f"gid {gid}" for gid in edits.additional_gids)
    yield from (f"mount {mount.container_path} {','.join(sorted(mount.options))}" for mount in edits.mounts)
    for hook in edits.hooks:
        words = [word for word in hook.args if word != THEN]
        yield from (f"link {words[at + 1]}" for at, word in enumerate(words) if word == "--link")


def table(name: str) -> list[str]:
    return [line for line in (TABLES / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tables have the library directories of x86-64")
@pytest.mark.parametrize("name", sorted(file.stem for file in TABLES.iterdir()))
def test_ours_has_everything_that_theirs_has(machine: Callable[[str], Machine], name: str) -> None:
    ours = {fact.replace(PLACE, "") for fact in facts(machine(name).spec())}
    theirs = table(name)
    for their, (own, _) in MEANT.items():
        theirs = [line.replace(their, own) for line in theirs]
    assert [line for line in theirs if line not in ours] == []
    assert len(theirs) > 50


def test_meant_differences_are_in_the_page_of_differences() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/toolkit-differences.md").read_text()
    assert all(words in page for _, words in MEANT.values())


@pytest.mark.root
def test_of_two_gpus_one_brings_its_own_drm_nodes_only(machine: Callable[[str], Machine]) -> None:
    spec = machine("l40s-server").spec(strategies=("index",))
    (one,) = (device for device in spec.devices if device.name == "1")
    assert [node.path for node in one.edits.device_nodes] == ["/dev/nvidia1", "/dev/dri/card1", "/dev/dri/renderD129"]
    assert [fact for fact in _edits(one.edits) if fact.startswith("link")] == [
        "link ../card1::/dev/dri/by-path/pci-0000:e1:00.0-card",
        "link ../renderD129::/dev/dri/by-path/pci-0000:e1:00.0-render",
    ]
    assert one.edits.additional_gids == (44, 105)
    assert not any("/dev/dri" in node.path for node in spec.edits.device_nodes)


@pytest.mark.root
def test_groups_need_cdi_0_7_and_can_be_left_out(machine: Callable[[str], Machine]) -> None:
    assert machine("l40s-server").spec().version == "0.7.0"
    spec = machine("l40s-server").spec(additional_gids=False)
    assert spec.version == "0.5.0"
    assert not any(device.edits.additional_gids for device in spec.devices)
    assert machine("l40s-server").spec(capabilities=("compute", "utility")).version == "0.5.0"
