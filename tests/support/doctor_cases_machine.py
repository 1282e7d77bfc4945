"""Cases of the doctor's checks: the machine itself."""

from __future__ import annotations

import errno
import os
import shutil

from nvc.base.errors import InitializationError
from nvc.bindings.uvm import ATS, HMM
from nvc.model import Host, Inventory
from tests.support.doctor_cases_software import PRIVATE, Change, cdi_hooks, other_driver
from tests.support.doctor_tree import MOUNTINFO_V2, Tree

VERSION = "580.159.04"
INFORMATION = "proc/driver/nvidia/gpus/0000:00:06.0/information"
V1 = "30 1 0:26 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"


def links(tree: Tree) -> None:
    for name, number in (("nvidiactl", "195:255"), ("nvidia0", "195:0"), ("nvidia-uvm", "238:0")):
        tree.path("dev/char").mkdir(exist_ok=True)
        os.symlink(f"../{name}", tree.path(f"dev/char/{number}"))
    os.symlink("../nvidia-uvm-tools", tree.path("dev/char/238:1"))


def graphics(tree: Tree) -> None:
    for name in ("vulkan/icd.d/nvidia_icd.json", "glvnd/egl_vendor.d/10_nvidia.json"):
        library = "libGLX_nvidia.so.0" if "vulkan" in name else "libEGL_nvidia.so.0"
        tree.json(f"usr/share/{name}", {"ICD": {"library_path": library}})


def failing(tree: Tree) -> None:
    def ask() -> Inventory:
        raise InitializationError("nvml error: driver not loaded", hint="load it")

    tree.ask = ask


def hidden(tree: Tree) -> None:
    tree.remove("proc/driver/nvidia/version")


def no_driver(tree: Tree) -> None:
    hidden(tree)
    shutil.rmtree(tree.path("sys/module"))


def no_firmware(tree: Tree) -> None:
    tree.path("usr/lib/firmware").rename(tree.path("usr/lib/gone"))


def no_filters(tree: Tree, number: int) -> None:
    def ask(path: str) -> None:
        assert path == "/sys/fs/cgroup"
        raise OSError(number, os.strerror(number))

    tree.filters = ask


def pageable(tree: Tree, answer: str | int) -> None:
    """What nvidia-uvm answers, or an error number."""

    def ask(host: Host) -> str:
        assert host == tree.host
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer), "/dev/nvidia-uvm")
        return answer

    tree.pageable = ask


def no_remarks(tree: Tree) -> None:
    inventory = tree.ask().replace(warnings=())
    tree.ask = lambda: inventory


#: Check -> a change after which all is well.
MACHINE_QUIET: dict[str, Change | None] = {
    "driver-loaded": None,
    "driver-gpus": None,
    "driver-uvm": None,
    "driver-memory": None,
    "driver-nvml": no_remarks,
    "driver-firmware": None,
    "driver-persistence": None,
    "driver-extras": None,
    "ldcache-readable": None,
    "ldcache-stale": None,
    "libraries-version": None,
    "libraries-needed": None,
    "libraries-graphics": graphics,
    "nodes-present": None,
    "nodes-numbers": None,
    "nodes-permissions": None,
    "nodes-links": links,
    "mig-minors": None,
    "mig-nodes": None,
    "mig-devices": None,
    "imex-nodes": None,
    "kernel-calls": None,
    "kernel-seccomp": lambda tree: tree.write("proc/sys/kernel/seccomp/actions_avail", "kill errno user_notif allow\n"),
    "kernel-bpf-jit": lambda tree: tree.write("proc/sys/net/core/bpf_jit_harden", "1\n"),
    "kernel-lockdown": lambda tree: tree.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
    "cgroup-mode": None,
    "cgroup-filters": None,
    "cgroup-reload": lambda tree: tree.systemd().program("podman"),
}

#: id -> check, change, level, words of the finding.
MACHINE_SPEAKS: dict[str, tuple[str, Change, str, str]] = {
    "no driver": ("driver-loaded", no_driver, "error", "no NVIDIA driver is loaded"),
    "nouveau": (
        "driver-loaded",
        lambda t: (no_driver(t), t.directory("sys/module/nouveau")),
        "error",
        "bound to the nouveau driver",
    ),
    "proc hidden": ("driver-loaded", hidden, "error", "module is loaded, but"),
    "odd version": ("driver-loaded", lambda t: t.write("proc/driver/nvidia/version", "hello\n"), "error", "'hello'"),
    "GPU not taken": (
        "driver-gpus",
        lambda t: t.write("sys/bus/pci/devices/0000:99:00.0/vendor", "0x10de\n").write(
            "sys/bus/pci/devices/0000:99:00.0/class", "0x030200\n"
        ),
        "error",
        "GPU 0000:99:00.0 is not bound",
    ),
    "no uvm": ("driver-uvm", lambda t: t.replace("proc/devices", "238 nvidia-uvm\n", ""), "error", "nvidia-uvm"),
    "HMM": ("driver-memory", lambda t: pageable(t, HMM), "note", "memory can move into video memory (HMM)"),
    "ATS": ("driver-memory", lambda t: pageable(t, ATS), "note", "a NUMA node (ATS)"),
    "UVM refuses": ("driver-memory", lambda t: pageable(t, errno.EIO), "note", "does not report whether"),
    "UVM out of reach": ("driver-memory", lambda t: pageable(t, errno.EACCES), "note", "permission denied"),
    "UVM not there": ("driver-memory", lambda t: pageable(t, errno.ENOENT), "skipped", "nothing to check"),
    "NVML fails": ("driver-nvml", failing, "error", "nvml error: driver not loaded"),
    "no firmware": (
        "driver-firmware",
        lambda t: (no_firmware(t), t.replace(INFORMATION, f"GPU Firmware: \t {VERSION}", "GPU Firmware: \t N/A")),
        "warning",
        "no GSP firmware",
    ),
    "firmware from an unknown place": (
        "driver-firmware",
        lambda t: no_firmware(t),
        "note",
        "the GPUs run GSP firmware",
    ),
    "firmware where the kernel is told": (
        "driver-firmware",
        lambda t: (
            no_firmware(t),
            t.write("sys/module/firmware_class/parameters/path", "/opt/driver/firmware\n"),
            t.write(f"opt/driver/firmware/nvidia/{VERSION}/gsp_ga10x.bin", ""),
        ),
        "ok",
        "is there",
    ),
    "no persistenced": (
        "driver-persistence",
        lambda t: t.remove("run/nvidia-persistenced/socket"),
        "note",
        "not running",
    ),
    "NVSwitch alone": ("driver-extras", lambda t: t.write("dev/nvidia-nvswitch0", ""), "error", "no fabric manager"),
    "user's MPS": (
        "driver-extras",
        lambda t: t.path("tmp/nvidia-mps").symlink_to("/etc"),
        "warning",
        "/tmp/nvidia-mps is a link",
    ),
    "no cache": ("ldcache-readable", lambda t: t.remove("etc/ld.so.cache"), "error", "is missing"),
    "cut cache": (
        "ldcache-readable",
        lambda t: t.write("etc/ld.so.cache", b"glibc-ld.so.cache1.1\0\0"),
        "error",
        "ld.so.cache",
    ),
    "library gone": ("ldcache-stale", lambda t: t.remove(t.library), "warning", "libcuda.so.1"),
    "upgraded libraries": ("libraries-version", other_driver, "error", "the loaded driver is 999.1.2"),
    "libraries alone": ("libraries-version", no_driver, "note", "no driver is loaded"),
    "libcuda gone": ("libraries-needed", lambda t: t.remove(t.library), "error", "libcuda.so of driver"),
    "libcuda spoilt": ("libraries-needed", lambda t: t.write(t.library, "no library"), "warning", "skipping"),
    "no Vulkan": ("libraries-graphics", lambda t: None, "note", "no Vulkan file"),
    "Vulkan astray": (
        "libraries-graphics",
        lambda t: t.json("etc/vulkan/icd.d/nvidia_icd.json", {"ICD": {"library_path": "libmissing.so"}}),
        "warning",
        "libmissing.so",
    ),
    "Vulkan broken": (
        "libraries-graphics",
        lambda t: t.write("etc/vulkan/icd.d/nvidia_icd.json", "{"),
        "warning",
        "None",
    ),
    "node gone": ("nodes-present", lambda t: t.remove("dev/nvidia-uvm"), "error", "/dev/nvidia-uvm is missing"),
    "optional node gone": ("nodes-present", lambda t: t.remove("dev/nvidia-uvm-tools"), "note", "nvidia-uvm-tools"),
    "node of another": (
        "nodes-numbers",
        lambda t: t.node("dev/nvidia-uvm", 250, 0),
        "error",
        "is 250:0, the driver's is 238:0",
    ),
    "file for node": (
        "nodes-numbers",
        lambda t: (t.remove("dev/nvidia0"), t.write("dev/nvidia0", "")),
        "error",
        "not a character device",
    ),
    "node closed": ("nodes-permissions", lambda t: t.path("dev/nvidia0").chmod(0o600), "warning", "mode 600"),
    "nodes of a group": (
        "nodes-permissions",
        lambda t: t.replace("proc/driver/nvidia/params", "Mode: 438", "Mode: 432"),
        "note",
        "mode 660",
    ),
    "no links": ("nodes-links", lambda t: t.systemd(), "warning", "/dev/char/195:255"),
    "no links, no systemd": ("nodes-links", lambda t: None, "note", "only systemd"),
    "mig-minors gone": (
        "mig-minors",
        lambda t: t.remove("proc/driver/nvidia-caps/mig-minors"),
        "warning",
        "is missing",
    ),
    "mig-minors odd": (
        "mig-minors",
        lambda t: t.write("proc/driver/nvidia-caps/mig-minors", "x y z\n"),
        "warning",
        "line 1",
    ),
    "nvcap gone": ("mig-nodes", lambda t: t.remove("dev/nvidia-caps/nvidia-cap1"), "error", "nvidia-cap1 is missing"),
    "nvcap of another": ("mig-nodes", lambda t: t.node("dev/nvidia-caps/nvidia-cap1", 9, 9), "error", "is 9:9"),
    "no compute instance": (
        "mig-devices",
        lambda t: t.directory("proc/driver/nvidia/capabilities/gpu0/mig/gi5"),
        "warning",
        "GPU instance 5 has no compute instance",
    ),
    "stale channel": (
        "imex-nodes",
        lambda t: t.node("dev/nvidia-caps-imex-channels/channel3", 9, 3),
        "error",
        "is 9:3",
    ),
    "channels alone": (
        "imex-nodes",
        lambda t: (
            t.replace("proc/devices", "242 nvidia-caps-imex-channels\n", ""),
            t.write("dev/nvidia-caps-imex-channels/channel0", ""),
        ),
        "warning",
        "no IMEX channels",
    ),
    "old kernel": ("kernel-calls", lambda t: t.calls.update(openat2="function not implemented"), "note", "openat2"),
    "no memfd": ("kernel-calls", lambda t: t.calls.update(memfd="function not implemented"), "error", "memfd"),
    "no seccomp": ("kernel-seccomp", lambda t: None, "warning", "not available"),
    "no notification": (
        "kernel-seccomp",
        lambda t: t.write("proc/sys/kernel/seccomp/actions_avail", "kill allow\n"),
        "note",
        "no seccomp user notification",
    ),
    "blinded": ("kernel-bpf-jit", lambda t: t.write("proc/sys/net/core/bpf_jit_harden", "2\n"), "warning", "is 2"),
    "locked down": (
        "kernel-lockdown",
        lambda t: (no_driver(t), t.write("sys/kernel/security/lockdown", "none [integrity] confidentiality")),
        "warning",
        "locked down",
    ),
    "no cgroup": ("cgroup-mode", lambda t: t.write("proc/self/mountinfo", PRIVATE), "error", "no device cgroup"),
    "odd mounts": ("cgroup-mode", lambda t: t.write("proc/self/mountinfo", "hello\n"), "error", "no device cgroup"),
    "hybrid": (
        "cgroup-mode",
        lambda t: t.write("proc/self/mountinfo", V1 + MOUNTINFO_V2).write(
            "sys/fs/cgroup/cgroup.controllers", "hugetlb\n"
        ),
        "note",
        "hugetlb",
    ),
    "filters unseen": ("cgroup-filters", lambda t: setattr(t, "uid", 1000), "note", "only root may query"),
    "filters forbidden": ("cgroup-filters", lambda t: no_filters(t, errno.EPERM), "note", "with these rights"),
    "no filters": ("cgroup-filters", lambda t: no_filters(t, errno.EINVAL), "error", "no device filters"),
    "daemon-reload, hooks": (
        "cgroup-reload",
        lambda t: (t.systemd().program("podman"), cdi_hooks(t)),
        "warning",
        "podman",
    ),
    "daemon-reload, docker": (
        "cgroup-reload",
        lambda t: t.systemd().program("dockerd", "nvidia-container-runtime-hook"),
        "warning",
        "docker",
    ),
}
