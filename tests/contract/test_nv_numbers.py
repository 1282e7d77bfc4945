"""Numbers and layouts of NVIDIA's interface are native/rm's headers', in Python and in native/rm itself.

Programs that start fast import no more for it: their numbers stay where they are, and are compared here.
"""

from __future__ import annotations

import re
import struct

from nvc.bindings import rmcontrol, uvm
from tests.support.nv_numbers import LAYOUTS, NUMBERS, OFFSETS, RM, SIZES, TEXT

CLASSES = re.findall(r"^#define (\w+)", TEXT.partition("/* class/cl*.h */\n")[2].partition("\n\n")[0], re.M)


def request(escape: str, size: int) -> int:
    """_IOWR ('F', escape, a struct of so many bytes)."""
    return 0xC0000000 | size << 16 | ord("F") << 8 | NUMBERS[escape]


def at(layout: struct.Struct, field: int) -> int:
    """Where a layout has its field of this index."""
    parts = re.findall(r"\d*x|\?|[A-Z]", layout.format.lstrip("="))
    fields = [index for index, part in enumerate(parts) if not part.endswith("x")]
    return struct.calcsize("=" + "".join(parts[: fields[field]]))


def test_the_headers_are_read() -> None:
    """Every line has the form that is read here, and no name has two numbers."""
    others = {"NVC_RM_NV_NUMBERS_H", "NV_REQUEST"}
    assert set(re.findall(r"^#define (\w+)", TEXT, re.M)) - others == NUMBERS.keys()
    assert len(re.findall(r"^#define", TEXT, re.M)) == len(NUMBERS) + len(others)
    assert NUMBERS["NV01_DEVICE_0"] in {NUMBERS[name] for name in CLASSES} and len(CLASSES) > 20
    assert len(SIZES) == len(re.findall(r"^NV_SIZE ", LAYOUTS, re.M)) > 30
    assert len(OFFSETS) == len(re.findall(r"^NV_AT ", LAYOUTS, re.M)) > 90


def test_requests_and_commands_of_python() -> None:
    assert request("NV_ESC_RM_CONTROL", SIZES["NVOS54_PARAMETERS"]) == rmcontrol.REQUEST
    assert request("NV_ESC_RM_ALLOC", SIZES["NVOS64_PARAMETERS"]) == rmcontrol.REQUEST_ALLOC
    assert NUMBERS["NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS"] == rmcontrol.DISABLE_CHANNELS
    assert NUMBERS["NVA06C_CTRL_CMD_SET_TIMESLICE"] == rmcontrol.SET_TIMESLICE
    assert NUMBERS["NVA06C_CTRL_CMD_GET_TIMESLICE"] == rmcontrol.GET_TIMESLICE
    assert NUMBERS["UVM_INITIALIZE"] == uvm.INITIALIZE
    assert NUMBERS["UVM_PAGEABLE_MEM_ACCESS"] == uvm.PAGEABLE_MEM_ACCESS


def test_layouts_of_calls() -> None:
    control, alloc = rmcontrol._CONTROL, rmcontrol._ALLOC
    assert [control.size, alloc.size] == [SIZES["NVOS54_PARAMETERS"], SIZES["NVOS64_PARAMETERS"]]
    assert OFFSETS["NVOS54_PARAMETERS", "status"] == rmcontrol._STATUS == at(control, 6)
    for index, field in enumerate(("hObject", "cmd", "flags", "params", "paramsSize"), 1):
        assert OFFSETS["NVOS54_PARAMETERS", field] == at(control, index)
    assert OFFSETS["NVOS64_PARAMETERS", "hObjectNew"] == rmcontrol._ALLOC_NEW
    assert OFFSETS["NVOS64_PARAMETERS", "status"] == rmcontrol._ALLOC_STATUS


def test_layouts_of_params() -> None:
    name = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS"
    assert SIZES[name] == rmcontrol._DISABLE_SIZE
    assert OFFSETS[name, "numChannels"] == rmcontrol._COUNT
    assert OFFSETS[name, "hClientList"] == rmcontrol._CLIENTS
    assert OFFSETS[name, "hChannelList"] == rmcontrol._CHANNELS == rmcontrol._CLIENTS + 4 * rmcontrol.CHANNELS_LIMIT
    assert SIZES["UVM_INITIALIZE_PARAMS"] == uvm._INITIALIZE.size
    assert OFFSETS["UVM_INITIALIZE_PARAMS", "rmStatus"] == at(uvm._INITIALIZE, 1)
    assert SIZES["UVM_PAGEABLE_MEM_ACCESS_PARAMS"] == uvm._PAGEABLE.size
    assert OFFSETS["UVM_PAGEABLE_MEM_ACCESS_PARAMS", "rmStatus"] == at(uvm._PAGEABLE, 1)


def test_a_number_with_a_name_stands_nowhere_else_in_rm() -> None:
    """Numbers below 0x1000 may mean something else, except where a row of a table begins with one."""
    kinds = {
        "CLASS": {NUMBERS[name] for name in CLASSES},
        "CONTROL": {number for name, number in NUMBERS.items() if "_CTRL_CMD_" in name},
        "ESCAPE": {number for name, number in NUMBERS.items() if name.startswith("NV_ESC_")},
    }
    large = {number for number in NUMBERS.values() if number >= 0x1000}
    found = []
    for path in sorted(RM.glob("*.[ch]")):
        if path.name == "nv_numbers.h":
            continue
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
        rows = re.findall(r"(0x[0-9a-f]+), (CLASS|CONTROL|ESCAPE)_", text)
        found += [f"{path.name}: {number}" for number, kind in rows if int(number, 16) in kinds[kind]]
        found += [f"{path.name}: {number}" for number in re.findall(r"0x[0-9a-f]+", text) if int(number, 16) in large]
    assert found == []
