"""nvc.linux.const against the C headers: a compiled program prints what they say."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from nvc.linux import const

HEADERS = Path(__file__).parent / "programs/const_headers.h"
#: Names of const whose C name is another, or that are not the headers'.
RENAMED = {"LINUX_CAPABILITY_VERSION_3": "_LINUX_CAPABILITY_VERSION_3"}
OURS = {"STATX_SIZE", "BPF_PROG_INFO_SIZE", "BPF_PROG_INFO_GPL_OFFSET", "AT_FDCWD", "NO_LIMIT", "NO_WATCH"}

#: Layout -> (C type, members in order); a member that C has as padding is "".
LAYOUTS = {
    "OPEN_HOW": ("struct open_how", ["flags", "mode", "resolve"]),
    "RLIMIT64": ("struct rlimit64", ["rlim_cur", "rlim_max"]),
    "SCHED_ATTR": (
        "struct sched_attr",
        [
            *("size", "sched_policy", "sched_flags", "sched_nice", "sched_priority"),
            *("sched_runtime", "sched_deadline", "sched_period", "sched_util_min", "sched_util_max"),
        ],
    ),
    "MOUNT_ATTR": ("struct mount_attr", ["attr_set", "attr_clr", "propagation", "userns_fd"]),
    "CAP_HEADER": ("struct __user_cap_header_struct", ["version", "pid"]),
    "SOCK_FILTER": ("struct sock_filter", ["code", "jt", "jf", "k"]),
    "SOCK_FPROG": ("struct sock_fprog", ["len", "filter"]),
    "BPF_ATTR_LOAD": (
        "union bpf_attr",
        [
            *("prog_type", "insn_cnt", "insns", "license", "log_level"),
            *("log_size", "log_buf", "kern_version", "prog_flags", "prog_name"),
        ],
    ),
    "BPF_ATTR_ATTACH": (
        "union bpf_attr",
        ["target_fd", "attach_bpf_fd", "attach_type", "attach_flags", "replace_bpf_fd"],
    ),
    "BPF_ATTR_QUERY": (
        "union bpf_attr",
        [
            *("query.target_fd", "query.attach_type", "query.query_flags", "query.attach_flags"),
            *("query.prog_ids", "query.prog_cnt", ""),
        ],
    ),
    "BPF_ATTR_INFO": ("union bpf_attr", ["info.bpf_fd", "info.info_len", "info.info"]),
}


def compiled(tmp_path: Path, expressions: dict[str, str]) -> dict[str, int]:
    """The values of C expressions."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    lines = "".join(f'    printf("{name} %lld\\n", (long long)({text}));\n' for name, text in expressions.items())
    (tmp_path / "print.c").write_text(f'#include "{HEADERS}"\nint main(void)\n{{\n{lines}    return 0;\n}}\n')
    subprocess.run(["cc", "-o", tmp_path / "print", tmp_path / "print.c"], check=True, timeout=60)
    output = subprocess.run([tmp_path / "print"], check=True, timeout=10, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in output.splitlines())}


def test_constants_have_the_headers_values(tmp_path: Path) -> None:
    values = {name: value for name, value in vars(const).items() if name.isupper() and isinstance(value, int)}
    names = {name for name in values if name not in OURS and not name.startswith("_")}
    assert len(names) > 80
    expressions = {name: RENAMED.get(name, name) for name in names}
    printed = compiled(tmp_path, expressions)
    differ = {
        name: (values[name], printed[name]) for name in names if values[name] & 0xFFFFFFFF != printed[name] & 0xFFFFFFFF
    }
    assert differ == {}


def test_system_call_numbers_are_this_machines(tmp_path: Path) -> None:
    printed = compiled(tmp_path, {name: f"SYS_{name}" for name in const.NR})
    assert dict(const.NR) == printed


def test_both_architectures_name_the_same_calls() -> None:
    tables = const._NUMBERS
    assert set(tables["x86_64"]) == set(tables["aarch64"])
    assert len(set(tables["aarch64"].values())) == len(tables["aarch64"])


def test_aarch64_numbers_are_the_generic_ones() -> None:
    generic = Path("/usr/include/asm-generic/unistd.h")
    if not generic.exists():
        pytest.skip("needs the kernel's headers")
    words = [line.split() for line in generic.read_text().splitlines() if line.startswith("#define __NR")]
    numbers = {parts[1].removeprefix("__NR_"): parts[2] for parts in words if len(parts) > 2}
    for name, number in const._NUMBERS["aarch64"].items():
        # __NR_fstatfs and its like are defined as __NR3264_fstatfs, which has the number.
        assert numbers.get(numbers[name], numbers[name]) == str(number), name


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_has_the_offsets_of_the_c_type(name: str, tmp_path: Path) -> None:
    kind, members = LAYOUTS[name]
    layout = getattr(const, name)
    codes = split_codes(layout)
    assert len(codes) == len(members)
    expressions = {f"m{i}": f"offsetof({kind}, {member})" for i, member in enumerate(members) if member}
    printed = compiled(tmp_path, {"size": f"sizeof({kind})", **expressions})
    order = layout[0]
    for index, member in enumerate(members):
        if member:
            before = struct.calcsize(order + "".join(codes[: index + 1])) - struct.calcsize(order + codes[index])
            assert before == printed[f"m{index}"], member
    if kind.startswith("struct"):
        assert struct.calcsize(layout) == printed["size"]


def split_codes(layout: str) -> list[str]:
    codes, digits = [], ""
    for char in layout[1:]:
        if char.isdigit():
            digits += char
        else:
            codes.append(digits + char)
            digits = ""
    return codes


def test_capability_data_are_two_of_the_c_type(tmp_path: Path) -> None:
    printed = compiled(tmp_path, {"size": "sizeof(struct __user_cap_data_struct)"})
    assert struct.calcsize(const.CAP_DATA) == 2 * printed["size"]


def test_read_members_are_where_c_has_them(tmp_path: Path) -> None:
    ordinary = [name for name in const.STATX_OFFSETS if name != "stx_mnt_id"]
    expressions = {f"statx.{name}": f"offsetof(struct statx, {name})" for name in ordinary}
    # The mount id is younger than many a libc's struct statx: linux/stat.h has it as what follows stx_dev_minor.
    expressions["statx.stx_mnt_id"] = "offsetof(struct statx, stx_dev_minor) + 4"
    expressions["statx"] = "sizeof(struct statx)"
    for name in const.BPF_PROG_INFO_OFFSETS:
        expressions[f"info.{name}"] = f"offsetof(struct bpf_prog_info, {name})"
    expressions["insn"] = "sizeof(struct bpf_insn)"
    printed = compiled(tmp_path, expressions)
    assert printed["statx"] == const.STATX_SIZE
    for name, offset in const.STATX_OFFSETS.items():
        assert printed[f"statx.{name}"] == offset, name
    for name, offset in const.BPF_PROG_INFO_OFFSETS.items():
        assert printed[f"info.{name}"] == offset, name
    assert printed["info.ifindex"] + 4 == const.BPF_PROG_INFO_GPL_OFFSET
    assert printed["insn"] == struct.calcsize(const.BPF_INSN)
