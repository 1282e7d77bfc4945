"""Where distributions keep a driver's files, as rows. Pure.

Facts: file lists of the packages nvidia-driver (Debian 12), nvidia-driver (RPM Fusion and NVIDIA's, RHEL 9) and
nvidia-utils (Arch); hardware.graphics of NixOS; driver installers of GKE and COS; Talos' nvidia-container-toolkit
extension; snapd's hostfs. None of these was run.
"""

from __future__ import annotations

from nvc.base.errors import DetectionError
from nvc.base.record import Record
from nvc.sim import elfwriter


class Architecture(Record):
    """What a machine's processor decides: Debian's names of its library directories, and its ELF files."""

    multiarch: str
    target: elfwriter.Target
    multiarch32: str
    target32: elfwriter.Target
    foreign: elfwriter.Target


ARCHITECTURES = {
    "x86_64": Architecture("x86_64-linux-gnu", elfwriter.X86_64, "i386-linux-gnu", elfwriter.I386, elfwriter.AARCH64),
    "aarch64": Architecture(
        "aarch64-linux-gnu", elfwriter.AARCH64, "arm-linux-gnueabihf", elfwriter.ARMHF, elfwriter.X86_64
    ),
}


class Layout(Record):
    """Directories of a distribution.

    marker: (path, text) of the file by which the distribution is known. vulkan: of the Vulkan loader's files; icd: name
    of the one that names the driver. modules: of the X server. prefix: below which the driver's files are, apart from
    nodes, /proc and /sys. cache: there is a loader cache. linked: (directory, where links to all that is in it are).
    """

    libraries: str
    libraries32: str
    marker: tuple[str, str]
    binaries: str = "/usr/bin"
    share: str = "/usr/share"
    vulkan: str = "/usr/share/vulkan"
    icd: str = "nvidia_icd.json"
    modules: str = "/usr/lib/xorg/modules"
    etc: str = "/etc"
    prefix: str = ""
    cache: bool = True
    linked: tuple[tuple[str, str], ...] = ()


#: NixOS keeps every package in a directory of its own.
_STORE = "/nix/store/0123456789abcdfghijklmnpqrsvwxyz-nvidia-x11"

#: Google's Container-Optimized OS; drivers' installers choose another prefix on GKE.
_CONTAINER_OPTIMIZED = Layout(
    "/lib64",
    "/lib",
    ("/etc/os-release", "ID=cos\n"),
    binaries="/bin",
    share="/share",
    vulkan="/vulkan",
    cache=False,
)

LAYOUTS = {
    "debian": Layout("/usr/lib/{multiarch}", "/usr/lib/{multiarch}", ("/etc/debian_version", "12.5\n")),
    "rhel": Layout(
        "/usr/lib64",
        "/usr/lib",
        ("/etc/redhat-release", "Red Hat Enterprise Linux release 9.4 (Plow)\n"),
        icd="nvidia_icd.{machine}.json",
        modules="/usr/lib64/xorg/modules",
    ),
    "arch": Layout("/usr/lib", "/usr/lib32", ("/etc/arch-release", "")),
    "nixos": Layout(
        f"{_STORE}/lib",
        f"{_STORE}/lib32",
        ("/etc/NIXOS", ""),
        binaries=f"{_STORE}/bin",
        share=f"{_STORE}/share",
        vulkan=f"{_STORE}/share/vulkan",
        etc=f"{_STORE}/etc",
        icd="nvidia_icd.{machine}.json",
        cache=False,
        linked=(
            (f"{_STORE}/lib", "/run/opengl-driver/lib"),
            (f"{_STORE}/share", "/run/opengl-driver/share"),
            (f"{_STORE}/etc", "/run/opengl-driver/etc"),
            (f"{_STORE}/bin", "/run/current-system/sw/bin"),
        ),
    ),
    "alpine": Layout("/usr/lib", "/usr/lib32", ("/etc/alpine-release", "3.20.3\n"), cache=False),
    "talos": Layout(
        "/usr/local/glibc/usr/lib",
        "/usr/local/glibc/usr/lib32",
        ("/etc/os-release", "ID=talos\n"),
        binaries="/usr/local/bin",
        share="/usr/local/share",
        vulkan="/usr/local/share/vulkan",
        cache=False,
    ),
    "gke": _CONTAINER_OPTIMIZED.replace(prefix="/home/kubernetes/bin/nvidia"),
    "cos": _CONTAINER_OPTIMIZED.replace(prefix="/var/lib/nvidia"),
    "snap": Layout(
        "/usr/lib/{multiarch}",
        "/usr/lib/{multiarch}",
        ("/etc/lsb-release", "ID=Ubuntu-Core\n"),
        prefix="/var/lib/snapd/hostfs",
    ),
}


def layout(name: str, machine: str) -> tuple[Layout, Architecture]:
    """The row ``name`` for a processor, with every name filled in. Raises DetectionError for an unknown processor."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        raise DetectionError(f"no simulated machine can be made on {machine}", hint="x86_64 and aarch64 can")
    row = LAYOUTS[name]
    filled = row.replace(
        libraries=row.libraries.format(multiarch=architecture.multiarch),
        libraries32=row.libraries32.format(multiarch=architecture.multiarch32),
        icd=row.icd.format(machine=machine),
    )
    return filled, architecture
