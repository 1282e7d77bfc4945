"""A hand-made driver root: real ELF files, a cache by the real ldconfig, /proc and /sys files. Nodes only for root.

Made by hand on purpose, next to the product's simulated machine: what both agree on is not one module's mistake.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nvc.driver.facts import NvmlGpu, NvmlMig, NvmlSystem
from nvc.model import Host

VERSION = "580.159.04"
LIBDIR, LIBDIR32 = "usr/lib/x86_64-linux-gnu", "usr/lib32"
LDCONFIG = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin") or "ldconfig"
TLS_NOTE = '.section .note.ABI-tag, "a"\n.long 4, 16, 1\n.ascii "GNU\\0"\n.long 0, 2, 3, 99\n'
OLD_NOTE = TLS_NOTE.replace("2, 3, 99", "2, 2, 5")

MAJORS = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n{more}\nBlock devices:\n  8 sd\n"
PARAMS = "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
NVRM = (
    f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  (builder@)\nGCC version: 15\n"
)

#: name, soname, 32-bit, note in assembly, needed library
Template = tuple[str, str, bool, str, str]
TEMPLATES: Sequence[Template] = (
    ("libnvidia-ml.so", "libnvidia-ml.so.1", False, "", ""),
    ("libnvidia-ml.so", "libnvidia-ml.so.1", True, "", ""),
    ("libcuda.so", "libcuda.so.1", False, "", ""),
    ("libcuda.so", "libcuda.so.1", True, "", ""),
    ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1", False, "", ""),
    ("libnvidia-glcore.so", "", False, "", ""),
    ("libnvidia-tls.so", "", False, TLS_NOTE, ""),
    ("libGLX_nvidia.so", "libGLX_nvidia.so.0", False, "", ""),
    ("libGL.so", "libGL.so.1", False, "", "libnvidia-glcore.so"),
)


def compile_library(
    path: Path, soname: str, *, bits32: bool = False, note: str = "", needs: Path | None = None
) -> None:
    """A real shared library without libc, so that the 32-bit one needs no 32-bit libc to link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".s")
    source.write_text(f'.globl f\nf:\n ret\n{note}.section .note.GNU-stack,"",@progbits\n')
    command = ["gcc", "-shared", "-nostdlib", "-m32" if bits32 else "-m64", "-o", str(path), str(source)]
    command += [f"-Wl,-soname,{soname}"] if soname else []
    command += ["-Wl,--no-as-needed", str(needs)] if needs else []
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    source.unlink()


def compile_templates(directory: Path) -> None:
    for name, soname, bits32, note, needs in TEMPLATES:
        file = f"{name}.{VERSION}"
        needed = directory / LIBDIR / f"{needs}.{VERSION}" if needs else None
        compile_library(
            directory / (LIBDIR32 if bits32 else LIBDIR) / file,
            soname or file,
            bits32=bits32,
            note=note,
            needs=needed,
        )


class DriverRoot:
    """The tree and what NVML would say about its machine."""

    def __init__(self, path: Path, templates: Path) -> None:
        self.path = path
        shutil.copytree(templates, path, dirs_exist_ok=True, symlinks=True)
        self.majors("238 nvidia-uvm", "241 nvidia-caps", "242 nvidia-caps-imex-channels")
        self.write("proc/driver/nvidia/version", NVRM)
        self.write("proc/driver/nvidia/params", PARAMS)
        self.write("proc/driver/nvidia/registry", 'Binary: ""\n')
        self.write("proc/driver/nvidia/gpus/0000:00:06.0/information", "Model: \t\t NVIDIA H200\n")
        self.capability("mig/config", 1)
        self.capability("mig/monitor", 2)
        self.write("proc/driver/nvidia-caps/mig-minors", mig_minors(4))
        self.write("sys/bus/pci/drivers/nvidia/0000:00:06.0", "")
        self.write(f"lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin", "")
        self.write(f"lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "")
        self.write(f"lib/firmware/nvidia/{VERSION}/other.txt", "")
        for name in ("nvidia-smi", "nvidia-persistenced", "nvidia-cuda-mps-control"):
            self.write(f"usr/bin/{name}", "#!/bin/sh\n")
        self.write("etc/ld.so.conf", f"/{LIBDIR}\n/{LIBDIR32}\n")
        self.ldconfig()

    @property
    def host(self) -> Host:
        return Host(root=str(self.path), system=str(self.path))

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": "/usr/local/bin:/usr/bin"}

    def write(self, path: str, text: str | bytes) -> Path:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode() if isinstance(text, str) else text)
        return target

    def majors(self, *lines: str) -> None:
        self.write("proc/devices", MAJORS.format(more="\n".join(lines) + "\n"))

    def capability(self, name: str, minor: int) -> None:
        self.write(
            f"proc/driver/nvidia/capabilities/{name}",
            f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
        )

    def node(self, path: str, major: int, minor: int) -> None:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(target, 0o666 | stat.S_IFCHR, os.makedev(major, minor))

    def nodes(self) -> None:
        self.node("dev/nvidia-uvm", 238, 0)
        self.node("dev/nvidia-uvm-tools", 238, 1)
        self.node("dev/nvidia-modeset", 195, 254)

    def ldconfig(self, layout: str = "new") -> None:
        subprocess.run([LDCONFIG, "-c", layout, "-r", str(self.path)], check=True, capture_output=True, timeout=60)

    def library(self, name: str) -> Path:
        return self.path / LIBDIR / f"{name}.{VERSION}"

    def mig_instance(self, gpu: int, gi: int, ci: int) -> NvmlMig:
        base = f"gpu{gpu}/mig/gi{gi}"
        minor = 3 + 135 * gpu + 9 * gi
        self.capability(f"{base}/access", minor)
        self.capability(f"{base}/ci{ci}/access", minor + 1 + ci)
        return NvmlMig(gi, gi, ci, f"MIG-{gpu}-{gi}-{ci}")


def mig_minors(gpus: int) -> str:
    """The file as nv-caps.c writes it: every combination, by the formula of its numbers."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(gpus):
        for gi in range(15):
            first = 3 + 135 * gpu + 9 * gi
            lines.append(f"gpu{gpu}/gi{gi}/access {first}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {first + 1 + ci}" for ci in range(8)]
    return "\n".join(lines) + "\n"


SYSTEM = NvmlSystem(VERSION, 13000, 1)
H200 = NvmlGpu(
    index=0,
    minor=0,
    name="NVIDIA H200",
    brand=14,
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    domain=0,
    bus=0,
    device=6,
    arch="9.0",
    mig_capable=True,
    mig_enabled=False,
    migs=(),
)
