"""What is written for CRI-O has the keys and types of crio.conf(5), tables crio.runtime and crio.runtime.runtimes."""

from __future__ import annotations

import tomllib

import pytest

from nvc.engines import crio
from nvc.engines.config import EngineConfig
from tests.nvc.engines.samples import Memory

#: crio.conf(5) of CRI-O 1.33, as far as a file of ours could have it.
RUNTIME = {"default_runtime": str, "hooks_dir": list, "runtimes": dict}
ROW = {
    "runtime_path": str,
    "runtime_type": str,
    "runtime_root": str,
    "runtime_config_path": str,
    "privileged_without_host_devices": bool,
    "allowed_annotations": list,
    "monitor_path": str,
    "monitor_cgroup": str,
    "monitor_env": list,
}
#: A main file as CRI-O's package writes it: the row that ours is made from.
MAIN = """\
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]
"""
CONFIG = EngineConfig(main_file="/etc/crio/crio.conf", drop_in="/etc/crio/crio.conf.d/99-nvidia.toml", hooks_dir="/h")


@pytest.mark.parametrize("main", [MAIN, ""])
@pytest.mark.parametrize(
    "changes", [{}, {"default": True}, {"hooks": True}, {"cdi": True}, {"name": "nvidia-cdi"}], ids=str
)
def test_keys_and_types(main: str, changes: dict[str, object]) -> None:
    memory = Memory(**{CONFIG.main_file: main})
    memory.carry_out(crio.plan(CONFIG.replace(**changes), memory))
    made = tomllib.loads(memory.texts[CONFIG.drop_in])

    assert set(made) == {"crio"}
    assert set(made["crio"]) == {"runtime"}
    runtime = made["crio"]["runtime"]
    assert {key: type(value) for key, value in runtime.items()} == {key: RUNTIME[key] for key in runtime}
    assert all(path.startswith("/") for path in runtime.get("hooks_dir", []))
    for row in runtime.get("runtimes", {}).values():
        assert {key: type(value) for key, value in row.items()} == {key: ROW[key] for key in row}
        assert row["runtime_type"] in ("oci", "vm", "pod")
        assert row["runtime_path"].startswith("/")
        assert row.get("monitor_path", "") == ("/usr/libexec/crio/conmon" if main else "")
