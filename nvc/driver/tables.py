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
    own_version: it has a version of its own, not the driver's.
    """

    name: str
    capability: str
    note: str
    links: tuple[Link, ...] = ()
    only: str = ""
    check: str = ""
    own_version: bool = False


class Config(Record):
    """A configuration file that a loader, or the X server, reads: path below the directories in which it is looked for.

    target: directory of the container that it goes below, always the same one, where the loaders look. at_root: the
    driver root is one of the directories (GKE's installer).
    """

    path: str
    target: str
    capability: str
    note: str
    at_root: bool = False


class Module(Record):
    """A module of the X server. {version} in the name is the driver's. link: made beside it, "" for none."""

    name: str
    capability: str
    note: str
    link: str = ""


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

#: What containers get beyond libnvidia-container's list. By these names: nvidia-container-toolkit.md 5.4. Their
#: capabilities, which the toolkit does not look at, are those of what opens them.
MORE_LIBRARIES = (
    Library("libnvsdm.so", "utility", "NVSwitch device monitoring"),
    Library("libnvidia-sandboxutils.so", "utility", "which files and nodes a sandbox needs"),
    Library("libnvidia-nvvm70.so", "compute", "NVVM compiler of an older IR", own_version=True),
    Library(
        "libnvidia-allocator.so",
        "graphics",
        "backend of Mesa's GBM, under the name by which libgbm opens it",
        links=(Link("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),),
    ),
    Library("libnvidia-egl-gbm.so", "graphics", "EGL on GBM", own_version=True),
    Library("libnvidia-egl-wayland.so", "graphics", "EGL on Wayland", own_version=True),
    Library("libnvidia-egl-wayland2.so", "graphics", "EGL on Wayland with DMA-BUF", own_version=True),
    Library("libnvidia-egl-xcb.so", "graphics", "EGL on XCB", own_version=True),
    Library("libnvidia-egl-xlib.so", "graphics", "EGL on Xlib", own_version=True),
    Library("libnvidia-api.so", "graphics", "NVAPI, for programs of Windows", own_version=True),
    Library(
        "libnvidia-vulkan-producer.so",
        "graphics",
        "Vulkan on Wayland, until driver 550",
        links=(Link("libnvidia-vulkan-producer.so"),),
    ),
    Library("libnvidia-present.so", "graphics", "presentation of frames, for Vulkan"),
    Library("libnvidia-vksc-core.so", "graphics", "Vulkan SC"),
    Library("libnvidia-wayland-client.so", "display", "Wayland, for nvidia-settings"),
    Library("libnvidia-gtk3.so", "display", "GTK 3, for nvidia-settings"),
    Library("libnvidia-gtk2.so", "display", "GTK 2, for nvidia-settings"),
)

#: Directory beside the libraries that has some of them.
LIBRARY_SUBDIRECTORIES = ("vdpau",)

#: Where configuration files go in the container, and where they are looked for: below these directories of the driver
#: root, in NixOS' driver directory, and in ``share`` and ``etc`` beside the directory of the libraries.
ETC, SHARE = "/etc", "/usr/share"
CONFIG_DIRECTORIES = (ETC, "/usr/local/share", SHARE, "/run/opengl-driver/share", "/run/opengl-driver/etc")
CONFIGS = (
    Config("OpenCL/vendors/nvidia.icd", ETC, "compute", "OpenCL loader"),
    Config("glvnd/egl_vendor.d/10_nvidia.json", SHARE, "graphics", "EGL loader: vendor"),
    *(
        Config(f"egl/egl_external_platform.d/{name}.json", SHARE, "graphics", "EGL: platform")
        for name in ("09_nvidia_wayland2", "10_nvidia_wayland", "15_nvidia_gbm", "20_nvidia_xcb", "20_nvidia_xlib")
    ),
    # RPM packages have the machine's name in the file's.
    *(
        Config(f"vulkan/{path}", ETC, "graphics", "Vulkan loader", at_root=True)
        for path in (
            "icd.d/nvidia_icd.json",
            "icd.d/nvidia_icd.x86_64.json",
            "icd.d/nvidia_icd.aarch64.json",
            "icd.d/nvidia_layers.json",
            "implicit_layer.d/nvidia_layers.json",
        )
    ),
    Config("nvidia/nvoptix.bin", SHARE, "graphics", "OptiX: data of the denoiser"),
    Config("X11/xorg.conf.d/10-nvidia.conf", SHARE, "graphics", "X server"),
    Config("X11/xorg.conf.d/nvidia-drm-outputclass.conf", SHARE, "graphics", "X server"),
)

#: At their own paths in the container: configuration files may name them.
MODULES = (
    Module("nvidia_drv.so", "graphics", "X server: driver"),
    Module("libglxserver_nvidia.so.{version}", "graphics", "X server: GLX", link="libglxserver_nvidia.so"),
)
#: Directories of modules: first those below the directories of the libraries.
MODULE_DIRECTORIES = ("nvidia/xorg",)
XORG_DIRECTORIES = (
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
)
XORG_ROOTS = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")

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

#: Beyond libnvidia-container's list.
MORE_BINARIES = (
    Binary("nvidia-imex", "utility", "IMEX daemon"),
    Binary("nvidia-imex-ctl", "utility", "control of the IMEX daemon"),
    Binary("nvidia-xconfig", "graphics", "makes a configuration of the X server"),
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
