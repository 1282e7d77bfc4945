"""What NVIDIA's driver consists of. Data only: a new library, binary, socket or node is one row here.

The order of the rows is the order of the results, hence of ``list``. Source: libnvidia-container.md 3.3 to 3.9
and 5.2 step 6 (links). ``docs/internals/adding-a-driver-library.md`` says how to add a row.
"""

from __future__ import annotations

from nvc.base.record import Record
from nvc.model import CONTROL_MINOR, MODESET_MINOR, NVIDIA_MAJOR


class Link(Record):
    """A link made beside a library in the container. text: what it holds, or "" for the library's own file name."""

    name: str
    text: str = ""


class Library(Record):
    """A library that is looked for in the loader cache.

    name: what the SONAME starts with. capability: the driver capability that mounts it.
    only: "" for always, "glvnd" or "legacy" for one of the two sets of GL libraries (option ``no-glvnd``).
    check: an additional condition on the file, one of the words that ``libraries`` knows ("tls-note", "legacy-gl").
    """

    name: str
    capability: str
    note: str
    links: tuple[Link, ...] = ()
    only: str = ""
    check: str = ""


class Binary(Record):
    """A program that is looked for in PATH. option: the driver option that leaves it out, or ""."""

    name: str
    capability: str
    note: str
    option: str = ""


class Ipc(Record):
    """A socket or directory through which the driver's daemons are reached.

    variable: may name another path. server: the socket in a directory. accounts: names of users that the daemon runs
    as where its packages do not run it as root.
    """

    path: str
    capability: str
    note: str
    option: str
    variable: str = ""
    server: str = ""
    accounts: tuple[str, ...] = ()


class Node(Record):
    """A device node that belongs to no GPU.

    major_name: its line in /proc/devices; major: the number when it is fixed, or -1.
    assumed: listed without looking, because there is no driver without it.
    """

    path: str
    major_name: str
    major: int
    minor: int
    note: str
    option: str = ""
    assumed: bool = False


class HostArch(Record):
    """A kernel's machine name with the marks that its 64-bit and 32-bit libraries carry.

    cache, cache32: architecture bits in the loader cache; elf, elf32: machine in the ELF header. No 32-bit: -1, "".
    """

    machine: str
    cache: int
    elf: str
    cache32: int = -1
    elf32: str = ""


LIBRARIES = (
    Library("libnvidia-ml.so", "utility", "NVML, the management library"),
    Library("libnvidia-cfg.so", "utility", "GPU configuration, for X and persistenced"),
    Library("libnvidia-nscq.so", "utility", "NVSwitch topology queries"),
    Library("libcuda.so", "compute", "CUDA driver library", links=(Link("libcuda.so", "libcuda.so.1"),)),
    Library("libcudadebugger.so", "compute", "CUDA coredumps and debugging"),
    Library("libnvidia-opencl.so", "compute", "OpenCL"),
    Library("libnvidia-gpucomp.so", "compute", "shader and kernel compiler of all interfaces"),
    Library("libnvidia-ptxjitcompiler.so", "compute", "PTX to SASS compiler, called by libcuda"),
    Library("libnvidia-fatbinaryloader.so", "compute", "fatbin loader, until driver 450"),
    Library("libnvidia-allocator.so", "compute", "memory allocator, GBM"),
    Library("libnvidia-compiler.so", "compute", "OpenCL compiler, until driver 495"),
    Library("libnvidia-pkcs11.so", "compute", "encryption for confidential computing, OpenSSL 1.1"),
    Library("libnvidia-pkcs11-openssl3.so", "compute", "encryption for confidential computing, OpenSSL 3"),
    Library("libnvidia-nvvm.so", "compute", "NVVM compiler, link-time optimisation at run time"),
    Library("libnvidia-tileiras.so", "compute", "CUDA tile compiler, from driver 590"),
    Library("libnvidia-ngx.so", "ngx", "NGX, the interface to DLSS"),
    Library("libvdpau_nvidia.so", "video", "VDPAU backend"),
    Library("libnvidia-encode.so", "video", "NVENC, video encoding"),
    Library(
        "libnvidia-opticalflow.so",
        "video",
        "optical flow",
        links=(Link("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),),
    ),
    Library("libnvcuvid.so", "video", "NVDEC, video decoding"),
    Library("libnvidia-eglcore.so", "graphics", "EGL core"),
    Library("libnvidia-glcore.so", "graphics", "OpenGL core"),
    Library("libnvidia-tls.so", "graphics", "thread-local storage of OpenGL", check="tls-note"),
    Library("libnvidia-glsi.so", "graphics", "OpenGL system interaction"),
    Library("libnvidia-fbc.so", "graphics", "framebuffer capture"),
    Library("libnvidia-ifr.so", "graphics", "in-band readback, until driver 470"),
    Library("libnvidia-rtcore.so", "graphics", "ray tracing core"),
    Library("libnvoptix.so", "graphics", "OptiX"),
    Library(
        "libGLX_nvidia.so",
        "graphics",
        "GLX vendor library",
        # Vulkan's and GLX's loaders ask for this name when the X server cannot tell the vendor.
        links=(Link("libGLX_indirect.so.0"),),
        only="glvnd",
    ),
    Library("libEGL_nvidia.so", "graphics", "EGL vendor library", only="glvnd"),
    Library("libGLESv2_nvidia.so", "graphics", "OpenGL ES 2 vendor library", only="glvnd"),
    Library("libGLESv1_CM_nvidia.so", "graphics", "OpenGL ES 1 vendor library", only="glvnd"),
    Library("libnvidia-glvkspirv.so", "graphics", "SPIR-V compiler of Vulkan", only="glvnd"),
    Library("libnvidia-cbl.so", "graphics", "Vulkan ray tracing", only="glvnd"),
    Library("libGL.so", "graphics", "OpenGL before GLVND", only="legacy", check="legacy-gl"),
    Library("libEGL.so", "graphics", "EGL before GLVND", only="legacy", check="legacy-gl"),
    Library("libGLESv1_CM.so", "graphics", "OpenGL ES 1 before GLVND", only="legacy", check="legacy-gl"),
    Library("libGLESv2.so", "graphics", "OpenGL ES 2 before GLVND", only="legacy", check="legacy-gl"),
)

#: Below WSL, beside the others and whatever the capabilities: what every library of Windows' driver is built on.
WSL_LIBRARIES = (Library("libdxcore.so", "", "the way to the graphics adapters of Windows"),)
#: What a driver store holds that containers need (libnvidia-container.md 8.1). A directory without any of it is not
#: NVIDIA's.
STORE_FILES = (
    "libcuda.so.1.1",
    "libcuda_loader.so",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ml_loader.so",
    "libnvdxgdmal.so.1",
    "nvidia-smi",
    "nvcubins.bin",
)

#: CUDA compute capability of the GPU in each Tegra, by the name that the device tree has for it.
TEGRA_ARCHES = {
    "tegra210": "5.3",
    "tegra186": "6.2",
    "tegra194": "7.2",
    "tegra234": "8.7",
    "tegra264": "11.0",
}
#: The mount lists that every container on a Tegra gets (nvidia-container-toolkit.md 3.7).
CSV_BASE = ("l4t.csv", "drivers.csv", "devices.csv")

#: What a legacy GL library must need for it to be NVIDIA's and not Mesa's or GLVND's.
LEGACY_GL_NEEDS = ("libnvidia-glcore.so", "libnvidia-eglcore.so")
#: The kernel in the ABI note of the libnvidia-tls that modern loaders take (there were two files of one name).
TLS_KERNEL = (2, 3, 99)

BINARIES = (
    Binary("nvidia-smi", "utility", "System Management Interface"),
    Binary("nvidia-debugdump", "utility", "driver state for bug reports"),
    Binary("nvidia-persistenced", "utility", "keeps the GPU initialised"),
    Binary("nv-fabricmanager", "utility", "NVSwitch fabric manager"),
    Binary("nvidia-cuda-mps-control", "compute", "MPS control daemon", option="no_mps"),
    Binary("nvidia-cuda-mps-server", "compute", "MPS server", option="no_mps"),
)

IPCS = (
    Ipc(
        "/var/run/nvidia-persistenced/socket",
        "utility",
        "nvidia-persistenced",
        "no_persistenced",
        # Of Debian's package, and of NVIDIA's.
        accounts=("nvpd", "nvidia-persistenced"),
    ),
    Ipc("/var/run/nvidia-fabricmanager/socket", "utility", "nv-fabricmanager", "no_fabricmanager"),
    Ipc(
        "/tmp/nvidia-mps",
        "compute",
        "pipes of MPS",
        "no_mps",
        variable="CUDA_MPS_PIPE_DIRECTORY",
        server="control",
    ),
)

#: Firmware of the GPU System Processor; {version} is the driver's.
FIRMWARE_DIRECTORY = "/lib/firmware/nvidia/{version}"
FIRMWARE_PREFIX, FIRMWARE_SUFFIX = "gsp", ".bin"

NODES = (
    Node("/dev/nvidiactl", "nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR, "control device", assumed=True),
    Node("/dev/nvidia-uvm", "nvidia-uvm", -1, 0, "unified memory", "no_uvm"),
    Node("/dev/nvidia-uvm-tools", "nvidia-uvm", -1, 1, "unified memory, for tools", "no_uvm"),
    Node("/dev/nvidia-modeset", "nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR, "mode setting", "no_modeset"),
)

HOST_ARCHES = (
    HostArch("x86_64", 0x0300, "EM_X86_64", 0x0000, "EM_386"),
    HostArch("aarch64", 0x0A00, "EM_AARCH64", 0x0900, "EM_ARM"),
    HostArch("ppc64le", 0x0500, "EM_PPC64"),
)

#: nvmlBrandType_t -> name; any other number is "Unknown".
BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "GRID",
    5: "GeForce",
    6: "TITAN",
    7: "VApps",
    8: "VPC",
    9: "VCS",
    10: "VWS",
    11: "CloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
}
