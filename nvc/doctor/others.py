"""Checks of LXC, Slurm and WSL2."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc.doctor.finding import Finding, note, ok, skipped, warning

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

_LXC_HOOK = "/usr/share/lxc/hooks/nvidia"
#: Must be in the fixed PATH that Incus gives its hooks.
_CLI = "nvidia-container-cli"
_SLURM = ("/etc/slurm", "/etc/slurm-llnl")
_WSL_STORE = "/usr/lib/wsl/drivers"


def lxc(probe: Probe) -> Iterator[Finding]:
    if not any(map(probe.program, ("lxc-start", "incusd", "lxd"))):
        yield skipped("LXC and Incus are not installed")
        return
    if not probe.system(_LXC_HOOK).exists():
        yield note(f"{_LXC_HOOK} is missing: LXC cannot add GPUs", "sudo apt-get install lxc")
    elif not probe.program(_CLI):
        ours = probe.program("nvc-py") or probe.own
        yield warning(
            f"LXC's hook calls {_CLI}, which is not in {':'.join(probe.search)}",
            f"sudo ln -s {shlex.quote(ours)} /usr/local/bin/{_CLI}" if ours else "sudo make install",
        )
    else:
        yield ok(f"LXC's hook finds {probe.program(_CLI)}")


def slurm(probe: Probe) -> Iterator[Finding]:
    directory = next((path for path in _SLURM if probe.system(path).exists()), "")
    if not probe.program("slurmd") and not directory:
        yield skipped("Slurm is not installed")
        return
    directory = directory or _SLURM[0]
    gres = _values(probe.system(f"{directory}/gres.conf").text())
    main = _values(probe.system(f"{directory}/slurm.conf").text())
    oci = probe.system(f"{directory}/oci.conf")
    if "gpu" not in main.get("grestypes", "").lower():
        yield note(
            f"{directory}/slurm.conf has no GresTypes=gpu: jobs cannot request GPUs", f"sudoedit {directory}/slurm.conf"
        )
    for value in gres.get("file", "").split():
        path, bracket, _ = value.partition("[")
        if not bracket and not probe.driver(path).exists():
            yield warning(
                f"{directory}/gres.conf names {path}, which does not exist", f"sudoedit {directory}/gres.conf"
            )
    if not oci.exists():
        yield note(f"{oci} is missing: srun --container is off")
        return
    values = _values(oci.text())
    if not any(key.startswith("runtime") for key in values):
        yield warning(f"{oci} names no runtime: srun --container fails", f"sudoedit {shlex.quote(str(oci))}")
    elif not any(name in oci.text() for name in ("nvc", "nvidia")):
        yield note(f"{oci} starts containers with another runtime: they get no GPU")
    else:
        yield ok(f"{oci} starts containers with a runtime that adds GPUs")


def _values(text: str) -> dict[str, str]:
    """KEY=VALUE of a Slurm file, keys in lower case, several values of one key joined by a space."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        for word in line.partition("#")[0].split():
            key, equals, value = word.partition("=")
            if equals:
                found[key.lower()] = f"{found.get(key.lower(), '')} {value}".strip()
    return found


def wsl(probe: Probe) -> Iterator[Finding]:
    """WSL2 may have several driver stores; the GPU's has libcuda."""
    if not probe.system("/dev/dxg").exists():
        return
    store = probe.system(_WSL_STORE)
    having = [name for name in store.names() if any(n.startswith("libcuda.so") for n in store.below(name).names())]
    if not having:
        yield warning(
            f"no driver store in {store} has libcuda", "wsl --shutdown  # in Windows, after updating its NVIDIA driver"
        )
    elif len(having) > 1:
        yield note(f"{len(having)} driver stores have libcuda: {', '.join(having)}; Windows keeps those of old drivers")
    else:
        yield ok(f"the driver store is {having[0]}")
