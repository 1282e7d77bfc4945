"""Numbers and layouts of NVIDIA's interface, as native/rm's headers have them, for tests."""

from __future__ import annotations

import re
from pathlib import Path

RM = Path(__file__).parents[2] / "native/rm"
TEXT = (RM / "nv_numbers.h").read_text()
#: Escapes, classes, controls, UVM's requests and statuses by NVIDIA's names.
NUMBERS = {name: int(number, 16) for name, number in re.findall(r"^#define (\w+) (0x[0-9a-f]+)u$", TEXT, re.M)}
LAYOUTS = "".join((RM / name).read_text() for name in ("nvos.h", "nv_classes.h", "nv_params.h", "uvm_ioctl.h"))
#: Bytes of each struct; bytes from its beginning to a field.
SIZES = {name: int(size) for name, size in re.findall(r"^NV_SIZE \((\w+), (\d+)\);$", LAYOUTS, re.M)}
OFFSETS = {
    (name, field): int(at) for name, field, at in re.findall(r"^NV_AT \((\w+), ([\w.]+), (\d+)\);$", LAYOUTS, re.M)
}
