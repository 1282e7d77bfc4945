"""The control file of the Debian package, made from setup.cfg and from what was built.

usage: packaging/debian.py requirements                what the package carries itself, one requirement a line
       packaging/debian.py control ROOT VERSION ARCH   the control file of the tree staged in ROOT
       packaging/debian.py changelog VERSION           its changes in Debian's form
"""

from __future__ import annotations

import configparser
import email.utils
import os
import re
import sys
import textwrap
from pathlib import Path

from commands import CHECKOUT
from glibc import elf_files, oldest

#: Requirement of setup.cfg -> the Debian package that has it; "" where the package carries it itself. Debian's own are
#: preferred: they get its security updates, fit the release's interpreter, and one file then serves several releases.
PACKAGES = {
    "click": "python3-click",
    "PyYAML": "python3-yaml",
    "tomlkit": "python3-tomlkit",
    "rich": "python3-rich",
}
MAINTAINER = "nvc-py maintainers <maintainers@nvc-py.invalid>"
#: The same of the extra kube, which most nodes do not need.
KUBE_PACKAGES = {"grpcio": "python3-grpcio", "protobuf": "python3-protobuf", "kubernetes": "python3-kubernetes"}
#: NVIDIA's packages install programs of the same names, and their refresh service writes the same CDI spec.
INSTEAD_OF = ("libnvidia-container-tools", "nvidia-container-toolkit", "nvidia-container-toolkit-base")


def requirements(section: str = "options", key: str = "install_requires") -> list[tuple[str, str]]:
    """(name, oldest version or "") of everything setup.cfg requires at run time, or for an extra."""
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    found = [re.fullmatch(r"([\w.-]+)(?:>=([\w.]+))?.*", line) for line in setup[section][key].split()]
    return [(match[1], match[2] or "") for match in found if match]


def carried() -> list[str]:
    """What goes into the package's own directory, as pip takes it."""
    return [f"{name}>={least}" if least else name for name, least in requirements() if not PACKAGES[name]]


def control(root: Path, version: str, architecture: str) -> str:
    """The control file. Raises KeyError for a requirement that has no row in PACKAGES."""
    # python3 and not -minimal, which has no ctypes. ldconfig is in libc-bin, which every Debian system has.
    depends = [f"libc6 (>= {oldest(elf_files(root))})", "python3 (>= 3.11)"]
    for name, least in requirements():
        if package := PACKAGES[name]:
            depends.append(f"{package} (>= {least})" if least else package)
    kube = [f"{KUBE_PACKAGES[name]} (>= {least})" for name, least in requirements("options.extras_require", "kube")]
    size = sum(file.lstat().st_size + 1023 for file in root.rglob("*") if not file.is_dir()) // 1024
    instead = ", ".join(INSTEAD_OF)
    return (
        f"Package: nvc-py\nVersion: {version}\nArchitecture: {architecture}\n"
        f"Maintainer: {MAINTAINER}\n"
        f"Installed-Size: {size}\nDepends: {', '.join(depends)}\n"
        f"Suggests: podman | docker.io | containerd | cri-o, runc | crun, {', '.join(kube)}\n"
        f"Conflicts: {instead}\nReplaces: {instead}\nProvides: {instead}\n"
        "Section: admin\nPriority: optional\n"
        "Description: lets containers use NVIDIA GPUs, whole or a limited part\n"
        " Puts the host's NVIDIA driver files, device nodes, MIG capabilities and a fresh\n"
        " loader cache into containers that ask for GPUs: as an OCI hook, as an OCI\n"
        " runtime, through CDI, or by hand. It replaces libnvidia-container and the NVIDIA\n"
        " container toolkit, with the same commands, and adds enforced limits of memory\n"
        " and compute time, without a kernel module.\n"
        " .\n"
        " No engine is changed by installing it: `nvc-py runtime configure` does that.\n"
    )


def changelog(version: str) -> str:
    """The version's section of CHANGELOG.md, or the newest, as Debian's tools read it."""
    sections = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    section = next((one for one in sections if one.startswith(f"[{version}]")), sections[0])
    changes = re.findall(r"^- (.*(?:\n  .*)*)", section, re.MULTILINE)
    lines = [
        textwrap.fill(change, 78, initial_indent="  * ", subsequent_indent="    ", break_on_hyphens=False)
        for change in changes
    ]
    day = email.utils.formatdate(int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    return f"nvc-py ({version}) unstable; urgency=medium\n\n" + "\n".join(lines) + f"\n\n -- {MAINTAINER}  {day}\n"


if __name__ == "__main__":
    if sys.argv[1] == "requirements":
        print("\n".join(carried()))
    elif sys.argv[1] == "changelog":
        print(changelog(sys.argv[2]), end="")
    else:
        print(control(Path(sys.argv[2]), sys.argv[3], sys.argv[4]), end="")
