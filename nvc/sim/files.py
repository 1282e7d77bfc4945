"""What a driver installs, as rows: which library a driver of a given version has, under which SONAME.

Facts of NVIDIA's installer (README, chapter "Installed Components", of the named versions); SONAMEs, NEEDED entries and
notes as a driver 580.159.04 on an H200 has them. Some of these files no
container gets; they are here because a real machine has them too. Names that discovery wants are not listed here:
that table is nvc/driver/tables.py, and tests compare the two.
"""

from __future__ import annotations

from nvc.base.record import Record
from nvc.sim.description import MachineDescription

#: In ``since`` and ``until``: the driver's major version.
_EVER = 9999
#: Kernel version in the ABI note of libnvidia-tls and libvdpau_nvidia: the build for the threads of every current
#: glibc (an older one, for LinuxThreads, has no such note).
TLS_NOTE = (2, 3, 99)


class Library(Record):
    """A library row.

    name: up to and including ".so". soname: version behind it in the SONAME, "" for the driver's version.
    since, until: first and last driver major that installs it. bits32: there is a 32-bit one too.
    needs: other libraries, up to ".so". kind: "stub", "nvml" or "cuda" (the two that have code). note: ABI note.
    glvnd: True, False: only with, only without GLVND; None: always. version: of the file, where not the driver's.
    graphics: only on machines with graphics. directory: below that of the others, on machines with graphics.
    """

    name: str
    soname: str = ""
    since: int = 0
    until: int = _EVER
    bits32: bool = False
    needs: tuple[str, ...] = ()
    kind: str = "stub"
    note: bool = False
    glvnd: bool | None = None
    usual: bool = True
    version: str = ""
    graphics: bool = False
    directory: str = ""


_TLS_GL = ("libnvidia-tls.so", "libnvidia-glcore.so")
_EGL = ("libnvidia-glsi.so", "libnvidia-eglcore.so")

LIBRARIES = (
    Library("libnvidia-ml.so", "1", bits32=True, kind="nvml"),
    Library("libnvidia-cfg.so", "1"),
    Library("libnvidia-nscq.so", "2", since=450, usual=False),
    Library("libcuda.so", "1", bits32=True, kind="cuda"),
    Library("libcudadebugger.so", "1", since=510),
    Library("libnvidia-opencl.so", "1", bits32=True),
    Library("libnvidia-gpucomp.so", since=545, bits32=True),
    Library("libnvidia-ptxjitcompiler.so", "1", since=352, bits32=True),
    Library("libnvidia-fatbinaryloader.so", until=440, bits32=True),
    Library("libnvidia-allocator.so", "1", since=435, bits32=True),
    Library("libnvidia-compiler.so", until=515, bits32=True),
    Library("libnvidia-pkcs11.so", since=530, until=579),
    Library("libnvidia-pkcs11-openssl3.so", since=535),
    Library("libnvidia-nvvm.so", "4", since=470, bits32=True),
    Library("libnvidia-tileiras.so", since=590),
    Library("libvdpau_nvidia.so", "1", bits32=True, note=True, directory="vdpau"),
    Library("libnvidia-encode.so", "1", bits32=True, needs=("libnvcuvid.so",)),
    Library("libnvidia-opticalflow.so", "1", since=410, bits32=True, needs=("libnvcuvid.so",)),
    Library("libnvcuvid.so", "1", bits32=True),
    Library("libnvidia-eglcore.so", bits32=True, needs=("libnvidia-glsi.so", "libnvidia-gpucomp.so")),
    Library("libnvidia-glcore.so", bits32=True, needs=("libnvidia-tls.so", "libnvidia-gpucomp.so")),
    Library("libnvidia-tls.so", bits32=True, note=True),
    Library("libnvidia-glsi.so", bits32=True),
    Library("libnvidia-fbc.so", "1", bits32=True),
    Library("libnvidia-ifr.so", "1", until=495, bits32=True),
    Library("libnvidia-rtcore.so", since=410),
    Library("libnvoptix.so", "1", since=410),
    Library("libGLX_nvidia.so", "0", bits32=True, needs=("libnvidia-glsi.so", *_TLS_GL), glvnd=True),
    Library("libEGL_nvidia.so", "0", bits32=True, needs=("libnvidia-glsi.so",), glvnd=True),
    Library("libGLESv2_nvidia.so", "2", bits32=True, glvnd=True),
    Library("libGLESv1_CM_nvidia.so", "1", bits32=True, glvnd=True),
    Library("libnvidia-glvkspirv.so", since=390, bits32=True),
    Library("libnvidia-cbl.so", since=435, until=470),
    Library("libGL.so", "1", bits32=True, needs=_TLS_GL, glvnd=False),
    Library("libEGL.so", "1", bits32=True, needs=_EGL, glvnd=False),
    Library("libGLESv1_CM.so", "1", bits32=True, needs=_EGL, glvnd=False),
    Library("libGLESv2.so", "2", bits32=True, needs=_EGL, glvnd=False),
    Library("libnvidia-ngx.so", "1", since=450),
    Library("libnvidia-sandboxutils.so", "1", since=565),
    Library("libnvidia-vksc-core.so", "1", since=535),
    Library("libnvidia-api.so", "1", since=525, version="1"),
    Library("libnvsdm.so", "1", since=555, usual=False),
    Library("libnvidia-nvvm70.so", "4", since=580, version="4", graphics=True),
    Library("libnvidia-vulkan-producer.so", "", since=465, until=550, graphics=True),
    Library("libnvidia-present.so", since=575, graphics=True),
    Library("libnvidia-wayland-client.so", since=525, graphics=True),
    Library("libnvidia-gtk3.so", graphics=True),
    Library("libnvidia-gtk2.so", graphics=True),
    Library("libnvidia-egl-gbm.so", "1", since=495, version="1.1.2", graphics=True, bits32=True),
    Library("libnvidia-egl-wayland.so", "1", version="1.1.19", graphics=True, bits32=True),
    Library("libnvidia-egl-wayland2.so", "1", since=590, version="1.0.0", graphics=True),
    Library("libnvidia-egl-xcb.so", "1", since=560, version="1.0.3", graphics=True, bits32=True),
    Library("libnvidia-egl-xlib.so", "1", since=560, version="1.0.3", graphics=True, bits32=True),
    # A library that no table of nvc.driver has: as a driver of the future brings.
    Library("libnvidia-unheard-of.so", graphics=True),
)

#: Programs of every driver, and those that only some machines have.
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
EXTRA_BINARIES = (
    "nv-fabricmanager",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-modprobe",
    "nvidia-settings",
    "nvidia-xconfig",
)


def known_names() -> frozenset[str]:
    """Every library and program name of the tables."""
    return frozenset([*(row.name for row in LIBRARIES), *BINARIES, *EXTRA_BINARIES])


class InstalledLibrary(Record):
    """A library file of a machine. file: its name; soname: what it calls itself; needs: SONAMEs.

    directory: below that of the others, or "".
    """

    row: Library
    file: str
    soname: str
    needs: tuple[str, ...]
    directory: str = ""


def _soname(row: Library, version: str) -> str:
    return f"{row.name}.{row.soname or version}"


def _installed(row: Library, machine: MachineDescription, bits: int) -> bool:
    major = int(machine.driver_version.partition(".")[0])
    if row.name in machine.without or (bits == 32 and not row.bits32):
        return False
    if row.glvnd is not None and row.glvnd != machine.glvnd:
        return False
    if row.graphics and not machine.graphics:
        return False
    return row.name in machine.extra or (row.usual and row.since <= major <= row.until)


def libraries(machine: MachineDescription, *, bits: int) -> tuple[InstalledLibrary, ...]:
    """The libraries of ``machine`` in one word size, in table order; none where its driver is another."""
    if machine.platform:
        return ()
    rows = {row.name: row for row in LIBRARIES if _installed(row, machine, bits)}
    found = []
    for row in rows.values():
        version = machine.versions.get(row.name, row.version or machine.driver_version)
        needs = tuple(_soname(rows[name], machine.driver_version) for name in row.needs if name in rows)
        # As the real ones; it is also by this name that ldconfig tells a 32-bit libc6 library from older kinds.
        needs = (*needs, "libc.so.6")
        directory = row.directory if machine.graphics and bits == 64 else ""
        found.append(InstalledLibrary(row, f"{row.name}.{version}", _soname(row, version), needs, directory))
    return tuple(found)


def binaries(machine: MachineDescription) -> tuple[str, ...]:
    """Names of the programs of ``machine``; none where its driver is another."""
    if machine.platform:
        return ()
    extra = tuple(name for name in EXTRA_BINARIES if name in machine.extra)
    return tuple(name for name in BINARIES if name not in machine.without) + extra
