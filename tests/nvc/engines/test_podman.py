"""Podman itself reads what we write: the hook is called, and with our environment only.

In a mount namespace with an /etc/containers of its own, on state below a temporary directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cgroupview

pytestmark = [
    pytest.mark.root,
    pytest.mark.system,
    pytest.mark.skipif(not (shutil.which("podman") and shutil.which("runc")), reason="needs podman and runc"),
]
REPOSITORY = Path(__file__).parents[3]

#: Root on a machine without CAP_SYS_RESOURCE cannot set Podman's own default limits.
CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
tmp_dir = "{place}/tmp"
volume_path = "{place}/volumes"
[network]
network_config_dir = "{place}/net"
"""
SCRIPT = Path(__file__).parent / "programs/configure_podman.sh"


def test_podman_calls_the_hook_until_it_is_removed(tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox")
    rootfs = tmp_path / "rootfs"
    for name in ("bin", "proc", "sys", "dev", "etc", "tmp", "run"):
        (rootfs / name).mkdir(parents=True)
    shutil.copy(busybox, rootfs / "bin" / "busybox")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "containers.conf").write_text(CONF.format(place=tmp_path))
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/root"\nrunroot = "{tmp_path}/run"\n'
    )
    hook = tmp_path / "nvc-hook"
    hook.write_text(f'#!/bin/sh\ncat >/dev/null\n{{ echo "$0 $*"; /usr/bin/env; }} >>{tmp_path}/log\n')
    hook.chmod(0o755)
    parent = f"nvc-engines-{os.getpid()}"
    ran = subprocess.run(
        [
            "unshare",
            "-m",
            "--propagation",
            "private",
            "sh",
            SCRIPT,
            tmp_path,
            REPOSITORY,
            sys.executable,
            parent,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )

    # Podman leaves the parent that it made, and its detached processes end in their own time.
    cgroupview.remove_when_empty(parent)
    assert cgroupview.directories(parent) == []
    assert ran.returncode == 0, ran.stderr
    called, *environment = (tmp_path / "log").read_text().splitlines()
    assert called == f"{hook} prestart"  # once: not by the second container
    assert {line.partition("=")[0] for line in environment} <= {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}
    assert ran.stdout.rstrip().endswith("/etc/containers/oci/hooks.d:")
