"""Whatever stands where a file is expected, every check ends, and none fails by a mistake of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nvc.base.errors import InitializationError
from nvc.doctor import runner, table
from nvc.model import Inventory
from tests.support.doctor_tree import Tree

FILES = (
    "proc/driver/nvidia/version",
    "proc/driver/nvidia/params",
    "proc/driver/nvidia/gpus/0000:00:06.0/information",
    "proc/driver/nvidia-caps/mig-minors",
    "proc/driver/nvidia/capabilities/mig/config",
    "proc/devices",
    "proc/self/mountinfo",
    "proc/sys/net/core/bpf_jit_harden",
    "sys/kernel/security/lockdown",
    "sys/fs/selinux/enforce",
    "sys/bus/pci/devices/0000:00:06.0/vendor",
    "etc/ld.so.cache",
    "etc/docker/daemon.json",
    "etc/containerd/config.toml",
    "etc/crio/crio.conf",
    "etc/containers/containers.conf",
    "etc/containers/oci/hooks.d/a.json",
    "etc/slurm/oci.conf",
    "etc/slurm/gres.conf",
    "etc/vulkan/icd.d/nvidia_icd.json",
    "etc/cdi/nvidia.yaml",
    "run/cdi/nvidia.json",
    "run/nvc/inventory.json",
    "etc/nvc/config.toml",
    "dev/nvidia-uvm",
)
#: Tables and lists where texts belong, and the other way round.
ODD_JSON = (
    {"runtimes": ["a"], "default-runtime": {}, "features": 1, "exec-opts": [1, None]},
    {"runtimes": {"nvidia": "x", "b": {"path": ["nvc-runtime"]}}, "features": {"cdi": "yes"}},
    {"hook": {"path": ["/usr/bin/nvc-hook"], "env": {}}, "stages": {"prestart": 1}},
    {"hook": {"path": "/usr/bin/nvc-hook\n\x1b[2J", "env": 1}, "stages": "prestart"},
    {"cdiVersion": 1, "kind": [], "devices": {"name": 1}, "containerEdits": []},
    {"ICD": {"library_path": 5}},
    [[[]]],
    "text",
    None,
)
ODD_TOML = (
    'imports = {a = 1}\nversion = 99999999999999999999\nplugins = ["a"]\n',
    'version = 2\nimports = ["../../../*", "/*", "\\u0000", 7]\n[plugins]\n"io.containerd.grpc.v1.cri" = 1\n',
    'version = true\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes]\nx = 1\ny.options.BinaryName = 3\n',
    "version = -1\n[plugins.cri.containerd]\nruntimes = []\ndefault_runtime_name = []\n",
    'engine = 5\ncrio = ["a"]\nnvidia-container-cli = "x"\n',
    '[engine]\nhooks_dir = "x"\nruntimes = {nvidia = "nvc-runtime", crun = [1]}\ncgroup_manager = []\n',
    '[engine]\nhooks_dir = ["relative", "\\u0000", ""]\n',
    '[nvidia-container-cli]\nldconfig = "@/\\u0000"\nroot = "\\u0000"\n',
    '[crio.runtime.runtimes]\nx = 1\ny.runtime_path = ["nvc-runtime"]\n'
    '[crio.runtime.runtimes.z]\nruntime_path = "nvc-runtime\\u0000"\n',
)


def ask() -> Inventory:
    raise InitializationError("no NVML in this test")


@pytest.fixture
def tree(make_tree: Callable[[str], Tree]) -> Tree:
    tree = make_tree("h200").systemd().program("dockerd", "podman", "containerd", "crio", "lxc-start", "slurmd")
    tree.ask = ask
    return tree.program("nvc-runtime", "nvc-hook", "nvidia-container-runtime-hook").directory("dev/dxg")


def looks(tree: Tree) -> str:
    """What all checks say; fails if one of them has a mistake."""
    probe = tree.probe()
    found = [finding for check in table.CHECKS for finding in runner.examine(check, probe)]
    text = "\n".join(f"{finding.level} {finding.check}: {finding.what}" for finding in found)
    assert "the check failed" not in text
    assert {finding.check for finding in found} == {check.name for check in table.CHECKS}
    return text


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)


def deep(path: Path) -> None:
    path.write_bytes(b'{"a":' * 100_000)


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


FORMS: dict[str, Callable[[Path], object]] = {
    "a directory": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link out of the tree": lambda path: path.symlink_to("/../../../../../etc/passwd"),
    "a device": lambda path: path.symlink_to("/dev/nvidiactl"),
    "empty": lambda path: path.write_bytes(b""),
    "bytes": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "one long line": lambda path: path.write_bytes(b"a:1 " * 500_000),
    "nested": deep,
    "huge": huge,
}


@pytest.mark.root
@pytest.mark.parametrize("form", FORMS)
def test_anything_in_place_of_any_file(form: str, tree: Tree) -> None:
    for name in FILES:
        path = tree.path(name)
        backup = path.read_bytes() if path.is_file() else None
        number = path.lstat().st_rdev if path.is_char_device() else 0
        clear(path)
        FORMS[form](path)
        looks(tree)
        clear(path)
        if backup is not None:
            path.write_bytes(backup)
        elif number:
            os.mknod(path, 0o20666, number)


@pytest.mark.root
@pytest.mark.parametrize("content", ODD_JSON, ids=lambda content: json.dumps(content)[:40])
def test_odd_json_in_every_json_file(content: object, tree: Tree) -> None:
    for name in FILES:
        if name.endswith((".json", ".yaml")):
            tree.json(name, content)
    looks(tree)


@pytest.mark.root
@pytest.mark.parametrize("content", ODD_TOML, ids=range(len(ODD_TOML)))
def test_odd_toml_in_every_toml_file(content: str, tree: Tree) -> None:
    for name in FILES:
        if name.endswith((".toml", ".conf")):
            tree.write(name, content)
    looks(tree)


@pytest.mark.root
def test_a_name_with_a_quote_cannot_end_the_command(tree: Tree) -> None:
    name = "etc/containers/oci/hooks.d/a'; touch HACKED; '.json"
    tree.write(name, "{")
    (fix,) = [finding.fix for finding in tree.examine("hooks-files") if finding.level == "error"]

    assert shlex.split(fix) == ["sudo", "mv", str(tree.path(name)), "/root/"]
