"""The layouts that Python repeats, against native/shim/share.h as a compiler sees it."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from nvc.bindings import reasons
from nvc.share import limits, region
from nvc.share.model import PRIORITIES, SERVICE
from tests.support.native import build

ROOT = Path(__file__).parents[3]
HEADER = (ROOT / "native/shim/share.h").read_text()


@pytest.fixture(scope="module")
def abi() -> dict[str, tuple[int, int]]:
    text = subprocess.run([build() / "abi_share"], capture_output=True, text=True, check=True).stdout
    return {name: (int(offset), int(size)) for name, offset, size in (line.split() for line in text.splitlines())}


def fields(form: struct.Struct, base: int = 0) -> list[tuple[int, int]]:
    """(offset, size) of every value of a little-endian form."""
    place, found = base, []
    for count, letter in re.findall(r"(\d*)([IQis x])", form.format.removeprefix("<")):
        size = struct.calcsize(f"<{letter}")
        if letter in "sx":
            found += [(place, int(count or 1))] if letter == "s" else []
            place += int(count or 1)
        else:
            for _ in range(int(count or 1)):
                found.append((place, size))
                place += size
    return found


def members(abi: dict[str, tuple[int, int]], structure: str, names: str) -> list[tuple[int, int]]:
    return [abi[f"{structure}.{name}"] for name in names.split()]


@pytest.mark.parametrize(
    ("structure", "names", "form", "base"),
    [
        ("limits", "magic version size generation checksum", limits.HEAD, 0),
        ("limits", "flags gpu_count node_count period driver container", limits._BODY, limits.BODY),
        ("limits_gpu", "uuid memory cap weight priority flags latency idle request most", limits._GPU, 0),
        ("limits_node", "kind minor device inode", limits._NODE, 0),
        ("region_header", "magic version page slots high unknown_driver", region.HEADER, 0),
        ("region_slot", "state generation pid_namespace pid threads_cap start_time name", region._SLOT, 0),
        ("region_channel", "client subdevice group channel descriptor gpu", region._CHANNEL, 0),
    ],
)
def test_forms_fit_their_structures(
    abi: dict[str, tuple[int, int]], structure: str, names: str, form: struct.Struct, base: int
) -> None:
    assert members(abi, structure, names) == fields(form, base)


@pytest.mark.parametrize(
    ("name", "offset", "size"),
    [
        ("limits.generation", limits.GENERATION, 4),
        ("limits.checksum", limits.CHECKSUM, 4),
        ("limits.gpus", limits.GPUS, limits.GPU_SIZE * limits.MAX_GPUS),
        ("limits.nodes", limits.NODES, limits.NODE_SIZE * limits.MAX_NODES),
        ("region_header.memory", region.OWN_MEMORY, 8 * region.MAX_GPUS),
        ("region_header.cap", region.OWN_CAP, 4 * region.MAX_GPUS),
        ("region_header.weight", region.OWN_WEIGHT, 4 * region.MAX_GPUS),
        ("region_header.notes", region.NOTE, region._NOTE.size * region.NOTES),
        ("region_slot.memory", region.MEMORY, region._QUADS.size),
        ("region_slot.pending", region.PENDING, region._QUADS.size),
        ("region_slot.managed", region.MANAGED, region._QUADS.size),
        ("region_slot.groups", region.GROUPS, region._WORDS.size),
        ("region_slot.frozen_ns", region.FROZEN, region._QUADS.size),
        ("region_slot.channel_version", region.CHANNEL_VERSION, 4),
        ("region_slot.channel_count", region.CHANNEL_VERSION + 4, 4),
        ("region_slot.channels", region.CHANNELS, region.CHANNEL_SIZE * region.MAX_CHANNELS),
        ("limits.*", 0, limits.SIZE),
        ("limits_gpu.*", 0, limits._GPU.size),
        ("limits_node.*", 0, limits._NODE.size),
        ("region_header.*", 0, region.PAGE),
        ("region_note.*", 0, region._NOTE.size),
        ("region_slot.*", 0, region.PAGE),
        ("region_channel.*", 0, region._CHANNEL.size),
    ],
)
def test_offsets_agree(abi: dict[str, tuple[int, int]], name: str, offset: int, size: int) -> None:
    assert abi[name] == (offset, size)


def test_numbers_agree(abi: dict[str, tuple[int, int]]) -> None:
    ours = {
        "SHARE_MAX_GPUS": limits.MAX_GPUS,
        "SHARE_MAX_NODES": limits.MAX_NODES,
        "LIMITS_MAGIC": limits.MAGIC,
        "LIMITS_VERSION": limits.VERSION,
        "LIMITS_SIZE": limits.SIZE,
        "LIMITS_PAUSED": limits.PAUSED,
        "LIMITS_GRAPHICS": limits.GRAPHICS,
        "LIMITS_OVERSUBSCRIBE": limits.OVERSUBSCRIBE,
        **{f"PRIORITY_{word.upper()}": number for number, word in enumerate(PRIORITIES) if word != SERVICE},
        "REGION_MAGIC": region.MAGIC,
        "REGION_VERSION": region.VERSION,
        "REGION_PAGE": region.PAGE,
        "REGION_SLOTS": region.SLOTS,
        "REGION_SIZE": region.SIZE,
        "REGION_LOCKS": region.LOCKS,
        "REGION_ADMISSION": region.ADMISSION,
        "REGION_CHANNELS": region.MAX_CHANNELS,
    }
    assert ours == {name: size for name, (_, size) in abi.items() if "." not in name}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHARE_LIMITS_PATH", limits.PATH),
        ("SHARE_REGION_PATH", region.PATH),
        ("SHARE_LIMITS_ENVIRONMENT", limits.VARIABLE),
        ("SHARE_REGION_ENVIRONMENT", region.VARIABLE),
    ],
)
def test_names_agree(name: str, value: str) -> None:
    assert f'#define {name} "{value}"' in HEADER


def test_reasons_and_nodes_are_those_of_rm() -> None:
    text = (ROOT / "native/rm/rm.h").read_text()
    body = re.search(r"enum rm_reason \{(.*?)RM_REASONS", text, re.DOTALL)
    assert body is not None
    names = re.findall(r"^\s+RM_([A-Z_]+)", body.group(1), re.MULTILINE)
    assert list(reasons.REASONS) == [name.lower().replace("_", "-") for name in names]
    kinds = dict(re.findall(r"RM_NODE_(\w+) = (\d)", text))
    assert {"OTHER": "0", "CONTROL": "1", "GPU": "2", "UVM": "3"} == kinds
    assert (1, 2, 3) == (limits.NODE_CONTROL, limits.NODE_GPU, limits.NODE_UVM)
