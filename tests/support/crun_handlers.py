"""Handlers of containerd: crun for pods without a GPU, and nvc-runtime over crun, beside the one over runc."""

from __future__ import annotations

import subprocess
from pathlib import Path

from nvc.kube.check import RUNTIME_CLASSES
from tests.support.cluster import Api, Object

PLAIN, OURS = "crun", "nvc-crun"
_SOURCE = Path(__file__).parent / "programs/other_settings.c"
_HANDLER = """
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}.options]
      BinaryName = "{program}"
"""


def configured(directory: Path, settings: str, runtime: str) -> str:
    """What containerd's file gains. directory: for ours. settings: of the node's config.toml. runtime: nvc-runtime."""
    file = directory / "nvc/config.toml"
    file.parent.mkdir()
    file.write_text(f'{settings}[nvidia-container-runtime]\nruntimes = ["crun", "runc"]\n')
    program = directory / "nvc-runtime"
    values = (f'-DSETTINGS="{directory}"', f'-DRUNTIME="{runtime}"')
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", *values, "-o", str(program), str(_SOURCE)], check=True)
    return _HANDLER.format(name=PLAIN, program="crun") + _HANDLER.format(name=OURS, program=program)


def make_classes(api: Api) -> None:
    """Their RuntimeClasses."""
    for name in (PLAIN, OURS):
        body: Object = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
        if api.find(f"{RUNTIME_CLASSES}/{name}") is None:
            api.create(RUNTIME_CLASSES, {**body, "handler": name})
