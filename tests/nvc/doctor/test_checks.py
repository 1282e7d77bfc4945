"""Every check on a tree where it is quiet and on trees where it speaks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

from nvc.doctor import table
from nvc.errors import InitializationError
from nvc.model import Inventory
from tests.support.doctor_tree import MOUNTINFO_V2, Tree

Change = Callable[[Tree], object]
HOOKS = "etc/containers/oci/hooks.d"
HOOK = {
    "version": "1.0.0",
    "hook": {"path": "/usr/bin/nvc-hook", "args": ["nvc-hook", "prestart"], "env": ["PATH=/bin"]},
    "when": {"always": True},
    "stages": ["prestart"],
}
V1 = "30 1 0:26 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
PRIVATE = "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def hook(**changes: object) -> dict[str, object]:
    """HOOK with other members of its "hook"."""
    return {**HOOK, "hook": {**HOOK["hook"], **changes}}  # type: ignore[dict-item]


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


def other_driver(tree: Tree) -> None:
    tree.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  999.1.2  Thu\n")


def hidden(tree: Tree) -> None:
    tree.remove("proc/driver/nvidia/version")


def no_driver(tree: Tree) -> None:
    hidden(tree)
    shutil.rmtree(tree.path("sys/module"))


def no_remarks(tree: Tree) -> None:
    inventory = tree.ask().replace(warnings=())
    tree.ask = lambda: inventory


def cdi_hooks(tree: Tree) -> None:
    tree.program("nvc-hook").json(f"{HOOKS}/nvc.json", HOOK).spec()


def containerd(text: str) -> Change:
    return lambda tree: tree.program("containerd").write("etc/containerd/config.toml", text)


RUNC = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\nBinaryName = "{}"\n'

#: Check -> a change after which all is well.
QUIET: dict[str, Change | None] = {
    "driver-loaded": None,
    "driver-gpus": None,
    "driver-uvm": None,
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
    "engine-programs": lambda tree: tree.program("nvc-hook", "nvc-cdi-hook", "nvc-runtime"),
    "engine-docker": lambda tree: tree.program("dockerd", "nvc-runtime").json(
        "etc/docker/daemon.json",
        {"runtimes": {"nvidia": {"path": "nvc-runtime"}}, "default-runtime": "nvidia", "features": {"cdi": True}},
    ),
    "engine-podman": lambda tree: tree.program("podman").write("etc/containers/containers.conf", "[engine]\n"),
    "engine-containerd": lambda tree: (containerd(RUNC.format("/usr/bin/nvc-runtime"))(tree), tree.program("nvc-runtime")),
    "engine-crio": lambda tree: tree.program("crio", "nvc-runtime").write(
        "etc/crio/crio.conf.d/99.conf", '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvc-runtime"\n'
    ),
    "engine-lxc": lambda tree: tree.program("lxc-start", "nvidia-container-cli").write("usr/share/lxc/hooks/nvidia", "#"),
    "engine-slurm": lambda tree: tree.program("slurmd")
    .write("etc/slurm/slurm.conf", "GresTypes=gpu\n")
    .write("etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia0  # one\n")
    .write("etc/slurm/oci.conf", 'RunTimeRun="nvc-runtime run %n"\n'),
    "engine-wsl": lambda tree: tree.write("dev/dxg", "").write("usr/lib/wsl/drivers/nv_1/libcuda.so.1.1", ""),
    "hooks-files": lambda tree: tree.program("nvc-hook").json(f"{HOOKS}/nvc.json", HOOK),
    "hooks-environment": lambda tree: tree.program("nvc-hook").json(f"{HOOKS}/nvc.json", HOOK),
    "hooks-twice": lambda tree: tree.program("nvc-hook").json(f"{HOOKS}/nvc.json", HOOK),
    "cdi-files": Tree.spec,
    "cdi-there": Tree.spec,
    "cdi-paths": Tree.spec,
    "cdi-driver": Tree.spec,
    "cdi-numbers": lambda tree: tree.spec(deviceNodes=[{"path": "/dev/nvidiactl", "major": 195, "minor": 255}]),
    "cdi-devices": Tree.spec,
    "cdi-environment": Tree.spec,
    "cdi-twice": cdi_hooks,
    "cdi-refresh": lambda tree: tree.systemd()
    .spec()
    .write("usr/lib/systemd/system/docker.service", "")
    .write("usr/lib/systemd/system/nvc-cdi-refresh.service", "[Unit]\nBefore=docker.service containerd.service\n"),
    "host-settings": lambda tree: tree.write("etc/nvc/config.toml", '[nvidia-container-cli]\nldconfig = "@/etc/debian_version"\n'),
    "host-requests": lambda tree: tree.write(
        "etc/nvc/config.toml", "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    ),
    "host-selinux": lambda tree: tree.write("sys/fs/selinux/enforce", "1").write(
        "sys/fs/selinux/booleans/container_use_devices", "1 1"
    ),
    "host-apparmor": lambda tree: tree.write("sys/module/apparmor/parameters/enabled", "Y\n"),
    "host-rootless": lambda tree: tree.program("podman").write("etc/subuid", "u:1:1\n").write("etc/subgid", "u:1:1\n"),
    "host-propagation": None,
    "inventory-cache": lambda tree: tree.write("run/nvc/inventory.json", "{}", 0o600),
}  # fmt: skip

#: id -> check, change, level, words of the finding.
SPEAKS: dict[str, tuple[str, Change, str, str]] = {
    "no driver": ("driver-loaded", no_driver, "error", "no NVIDIA driver is loaded"),
    "nouveau": ("driver-loaded", lambda t: (no_driver(t), t.directory("sys/module/nouveau")), "error", "nouveau driver has"),
    "proc hidden": ("driver-loaded", hidden, "error", "module is loaded, but"),
    "odd version": ("driver-loaded", lambda t: t.write("proc/driver/nvidia/version", "hello\n"), "error", "'hello'"),
    "GPU not taken": ("driver-gpus", lambda t: t.write("sys/bus/pci/devices/0000:99:00.0/vendor", "0x10de\n").write(
        "sys/bus/pci/devices/0000:99:00.0/class", "0x030200\n"), "error", "did not take GPU 0000:99:00.0"),
    "no uvm": ("driver-uvm", lambda t: t.replace("proc/devices", "238 nvidia-uvm\n", ""), "error", "nvidia-uvm"),
    "NVML fails": ("driver-nvml", failing, "error", "nvml error: driver not loaded"),
    "no firmware": ("driver-firmware", lambda t: t.path("usr/lib/firmware").rename(t.path("usr/lib/gone")), "warning",
        "no GSP firmware"),
    "no persistenced": ("driver-persistence", lambda t: t.remove("run/nvidia-persistenced/socket"), "note", "not running"),
    "NVSwitch alone": ("driver-extras", lambda t: t.write("dev/nvidia-nvswitch0", ""), "error", "no fabric manager"),
    "no cache": ("ldcache-readable", lambda t: t.remove("etc/ld.so.cache"), "error", "is missing"),
    "cut cache": ("ldcache-readable", lambda t: t.write("etc/ld.so.cache", b"glibc-ld.so.cache1.1\0\0"), "error", "ld.so.cache"),
    "library gone": ("ldcache-stale", lambda t: t.remove(t.library), "warning", "libcuda.so.1"),
    "upgraded libraries": ("libraries-version", other_driver, "error", "the loaded driver is 999.1.2"),
    "libraries alone": ("libraries-version", no_driver, "note", "no driver is loaded"),
    "libcuda gone": ("libraries-needed", lambda t: t.remove(t.library), "error", "libcuda.so of driver"),
    "libcuda spoilt": ("libraries-needed", lambda t: t.write(t.library, "no library"), "warning", "skipping"),
    "no Vulkan": ("libraries-graphics", lambda t: None, "note", "no Vulkan file"),
    "Vulkan astray": ("libraries-graphics", lambda t: t.json("etc/vulkan/icd.d/nvidia_icd.json",
        {"ICD": {"library_path": "libmissing.so"}}), "warning", "libmissing.so"),
    "Vulkan broken": ("libraries-graphics", lambda t: t.write("etc/vulkan/icd.d/nvidia_icd.json", "{"), "warning", "None"),
    "node gone": ("nodes-present", lambda t: t.remove("dev/nvidia-uvm"), "error", "/dev/nvidia-uvm is missing"),
    "optional node gone": ("nodes-present", lambda t: t.remove("dev/nvidia-uvm-tools"), "note", "nvidia-uvm-tools"),
    "node of another": ("nodes-numbers", lambda t: t.node("dev/nvidia-uvm", 250, 0), "error", "is 250:0, the driver's is 238:0"),
    "file for node": ("nodes-numbers", lambda t: (t.remove("dev/nvidia0"), t.write("dev/nvidia0", "")), "error",
        "not a character device"),
    "node closed": ("nodes-permissions", lambda t: t.path("dev/nvidia0").chmod(0o600), "warning", "mode 600"),
    "nodes of a group": ("nodes-permissions", lambda t: (t.replace("proc/driver/nvidia/params", "Mode: 438", "Mode: 432")),
        "note", "mode 660"),
    "no links": ("nodes-links", lambda t: t.systemd(), "warning", "/dev/char/195:255"),
    "no links, no systemd": ("nodes-links", lambda t: None, "note", "only systemd"),
    "mig-minors gone": ("mig-minors", lambda t: t.remove("proc/driver/nvidia-caps/mig-minors"), "warning", "is missing"),
    "mig-minors odd": ("mig-minors", lambda t: t.write("proc/driver/nvidia-caps/mig-minors", "x y z\n"), "warning", "line 1"),
    "nvcap gone": ("mig-nodes", lambda t: t.remove("dev/nvidia-caps/nvidia-cap1"), "error", "nvidia-cap1 is missing"),
    "nvcap of another": ("mig-nodes", lambda t: t.node("dev/nvidia-caps/nvidia-cap1", 9, 9), "error", "is 9:9"),
    "no compute instance": ("mig-devices", lambda t: t.directory("proc/driver/nvidia/capabilities/gpu0/mig/gi5"), "warning",
        "GPU instance 5 has no compute instance"),
    "stale channel": ("imex-nodes", lambda t: t.node("dev/nvidia-caps-imex-channels/channel3", 9, 3), "error", "is 9:3"),
    "channels alone": ("imex-nodes", lambda t: (t.replace("proc/devices", "242 nvidia-caps-imex-channels\n", ""),
        t.write("dev/nvidia-caps-imex-channels/channel0", "")), "warning", "no IMEX channels"),
    "old kernel": ("kernel-calls", lambda t: t.calls.update(openat2="function not implemented"), "note", "openat2"),
    "no memfd": ("kernel-calls", lambda t: t.calls.update(memfd="function not implemented"), "error", "memfd"),
    "no seccomp": ("kernel-seccomp", lambda t: None, "warning", "not available"),
    "no notification": ("kernel-seccomp", lambda t: t.write("proc/sys/kernel/seccomp/actions_avail", "kill allow\n"), "note",
        "no seccomp user notification"),
    "blinded": ("kernel-bpf-jit", lambda t: t.write("proc/sys/net/core/bpf_jit_harden", "2\n"), "warning", "is 2"),
    "locked down": ("kernel-lockdown", lambda t: t.write("sys/kernel/security/lockdown", "none integrity [confidentiality]"),
        "warning", "locked down"),
    "no cgroup": ("cgroup-mode", lambda t: t.write("proc/self/mountinfo", PRIVATE), "error", "no device cgroup"),
    "odd mounts": ("cgroup-mode", lambda t: t.write("proc/self/mountinfo", "hello\n"), "error", "no device cgroup"),
    "hybrid": ("cgroup-mode", lambda t: t.write("proc/self/mountinfo", V1 + MOUNTINFO_V2).write(
        "sys/fs/cgroup/cgroup.controllers", "hugetlb\n"), "note", "hugetlb"),
    "filters unseen": ("cgroup-filters", lambda t: None, "ok", ""),
    "daemon-reload, hooks": ("cgroup-reload", lambda t: (t.systemd().program("podman"), cdi_hooks(t)), "warning", "podman"),
    "daemon-reload, docker": ("cgroup-reload", lambda t: t.systemd().program("dockerd", "nvidia-container-runtime-hook"),
        "warning", "docker"),
    "not installed": ("engine-programs", lambda t: None, "note", "nvc-hook"),
    "docker unaware": ("engine-docker", lambda t: t.program("dockerd"), "note", "no way to GPUs"),
    "docker broken": ("engine-docker", lambda t: t.write("etc/docker/daemon.json", '{"runtimes": '), "error", "not JSON"),
    "docker a list": ("engine-docker", lambda t: t.write("etc/docker/daemon.json", "[]"), "error", "not a JSON object"),
    "docker, runtime gone": ("engine-docker", lambda t: t.json("etc/docker/daemon.json",
        {"runtimes": {"nvidia": {"path": "/opt/nvidia-container-runtime"}}}), "error", "which is not there"),
    "docker, no such default": ("engine-docker", lambda t: t.json("etc/docker/daemon.json", {"default-runtime": "nv"}),
        "error", "default-runtime 'nv'"),
    "podman broken": ("engine-podman", lambda t: t.program("podman").write("etc/containers/containers.conf", "[engine"),
        "error", "not TOML"),
    "podman, runtime gone": ("engine-podman", lambda t: t.program("podman").write("etc/containers/containers.conf",
        '[engine.runtimes]\nnvidia = ["/opt/nvc-runtime"]\n'), "error", "/opt/nvc-runtime"),
    "podman, hooks_dir gone": ("engine-podman", lambda t: t.program("podman").write("etc/containers/containers.conf",
        '[engine]\nhooks_dir = ["/no/where"]\n'), "warning", "/no/where"),
    "containerd unaware": ("engine-containerd", containerd("version = 2\n"), "note", "no way to GPUs"),
    "containerd broken": ("engine-containerd", containerd("version = \n"), "error", "not TOML"),
    "containerd, odd version": ("engine-containerd", containerd("version = 'two'\n"), "error", "not a number"),
    "containerd, runtime gone": ("engine-containerd", containerd(RUNC.format("/opt/nvc-runtime")), "error", "/opt/nvc-runtime"),
    "containerd, import broken": ("engine-containerd", lambda t: (containerd('imports = ["/etc/containerd/conf.d/*.toml"]\n')(t),
        t.write("etc/containerd/conf.d/9.toml", "=")), "error", "9.toml is not TOML"),
    "containerd, table twice": ("engine-containerd", lambda t: (containerd(
        'imports = ["conf.d/*.toml", "/etc/containerd/conf.d/*.toml"]\n' + RUNC.format("runc"))(t),
        t.write("etc/containerd/conf.d/9.toml", RUNC.format("nvc-runtime")), t.program("nvc-runtime")), "note", "both have"),
    "containerd, default elsewhere": ("engine-containerd", containerd(
        'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n'), "warning",
        "default_runtime_name 'nvidia'"),
    "CRI-O broken": ("engine-crio", lambda t: t.write("etc/crio/crio.conf.d/1.conf", "["), "error", "not TOML"),
    "CRI-O, runtime gone": ("engine-crio", lambda t: t.write("etc/crio/crio.conf",
        '[crio.runtime.runtimes.nvidia]\nruntime_path = "/opt/nvc-runtime"\n'), "error", "/opt/nvc-runtime"),
    "LXC without program": ("engine-lxc", lambda t: t.program("lxc-start").write("usr/share/lxc/hooks/nvidia", ""), "warning",
        "nvidia-container-cli"),
    "LXC without hook": ("engine-lxc", lambda t: t.program("lxc-start"), "note", "hooks/nvidia is missing"),
    "Slurm without oci": ("engine-slurm", lambda t: t.program("slurmd"), "note", "oci.conf is missing"),
    "Slurm, node gone": ("engine-slurm", lambda t: t.write("etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia7"), "warning",
        "/dev/nvidia7"),
    "Slurm, oci empty": ("engine-slurm", lambda t: t.write("etc/slurm/oci.conf", ""), "warning", "names no runtime"),
    "WSL without libcuda": ("engine-wsl", lambda t: t.write("dev/dxg", ""), "warning", "has libcuda"),
    "WSL, two stores": ("engine-wsl", lambda t: t.write("dev/dxg", "").write("usr/lib/wsl/drivers/a/libcuda.so.1", "").write(
        "usr/lib/wsl/drivers/b/libcuda.so.1", ""), "note", "2 driver stores"),
    "hook broken": ("hooks-files", lambda t: t.write(f"{HOOKS}/a b.json", "{"), "error", "a b.json is not JSON"),
    "hook's program gone": ("hooks-files", lambda t: t.json(f"{HOOKS}/nvc.json", HOOK), "error", "/usr/bin/nvc-hook is not there"),
    "hook relative": ("hooks-files", lambda t: t.json(f"{HOOKS}/nvc.json", hook(path="nvc-hook")), "error", "absolute path"),
    "hook at no stage": ("hooks-files", lambda t: t.program("nvc-hook").json(f"{HOOKS}/nvc.json", {**HOOK, "stages": ["x"]}),
        "error", "['x']"),
    "hook without env": ("hooks-environment", lambda t: t.json(f"{HOOKS}/nvc.json", hook(env=[])), "warning", "env is empty"),
    "exposed hook without env": ("hooks-environment", lambda t: t.json(f"{HOOKS}/nvc.json",
        {**hook(env=[]), "stages": ["createContainer"]}), "error", "env is empty"),
    "two hooks": ("hooks-twice", lambda t: t.json(f"{HOOKS}/a.json", HOOK).json(f"{HOOKS}/b.json", HOOK), "warning", "2 hooks"),
    "CDI broken": ("cdi-files", lambda t: t.write("etc/cdi/nvidia.yaml", "a: [\n"), "error", "nvidia.yaml"),
    "CDI twice": ("cdi-files", lambda t: t.spec().spec("run/cdi/other.json"), "warning", "engines resolve neither"),
    "no CDI": ("cdi-there", lambda t: None, "note", "no CDI spec offers"),
    "CDI, file gone": ("cdi-paths", lambda t: t.spec(mounts=[{"hostPath": "/no/libcuda.so.1", "containerPath": "/x"}]),
        "error", "mount /no/libcuda.so.1"),
    "CDI, node gone": ("cdi-paths", lambda t: t.spec(deviceNodes=[{"path": "/dev/nvidia9"}]), "error", "node /dev/nvidia9"),
    "CDI of another driver": ("cdi-driver", lambda t: (t.spec(), other_driver(t)), "error", "999.1.2 is loaded"),
    "CDI of another boot": ("cdi-numbers", lambda t: t.spec(deviceNodes=[{"path": "/dev/nvidia-uvm", "major": 511}]),
        "error", "/dev/nvidia-uvm 511:0"),
    "CDI kept, with numbers": ("cdi-numbers", lambda t: t.spec("etc/cdi/nvidia.json",
        deviceNodes=[{"path": "/dev/nvidia-uvm", "major": 238}]), "warning", "stays after a boot"),
    "CDI of a GPU that went": ("cdi-devices", lambda t: t.spec(device="7"), "error", "7"),
    "CDI without a GPU": ("cdi-devices", lambda t: t.spec(device="all"), "warning", "does not offer GPU 0"),
    "CDI hook without env": ("cdi-environment", lambda t: t.spec(hooks=[{"hookName": "createContainer", "path": "/x"}]),
        "error", "CVE-2025-23266"),
    "CDI and hook": ("cdi-twice", lambda t: (cdi_hooks(t), t.spec(env=["A=b"])), "warning", "acts on containers"),
    "CDI never refreshed": ("cdi-refresh", lambda t: t.systemd().spec(), "warning", "nothing makes"),
    "CDI refreshed late": ("cdi-refresh", lambda t: t.systemd().spec().write("usr/lib/systemd/system/docker.service", "").write(
        "etc/systemd/system/nvidia-cdi-refresh.service", "[Unit]\n"), "warning", "not ordered before docker.service"),
    "settings broken": ("host-settings", lambda t: t.write("etc/nvc/config.toml", "a = [\n"), "error", "not TOML"),
    "settings of a wrong type": ("host-settings", lambda t: t.write("etc/nvidia-container-runtime/config.toml",
        "[nvidia-container-cli]\nno-cgroups = 'yes'\n"), "error", "no-cgroups is not a bool"),
    "image's ldconfig": ("host-settings", lambda t: t.write("etc/nvc/config.toml",
        "[nvidia-container-cli]\nldconfig = '/sbin/ldconfig'\n"), "error", "CVE-2024-0136"),
    "ldconfig gone": ("host-settings", lambda t: t.write("etc/nvc/config.toml",
        "[nvidia-container-cli]\nldconfig = '@/no/ldconfig'\n"), "error", "does not exist"),
    "driver root gone": ("host-settings", lambda t: t.write("etc/nvc/config.toml",
        "[nvidia-container-cli]\nroot = '/run/nvidia/driver'\n"), "error", "root = '/run/nvidia/driver'"),
    "no-cgroups": ("host-settings", lambda t: t.write("etc/nvc/config.toml", "[nvidia-container-cli]\nno-cgroups = true\n"),
        "note", "no-cgroups is on"),
    "anybody may ask": ("host-requests", lambda t: None, "note", "any image"),
    "SELinux": ("host-selinux", lambda t: t.write("sys/fs/selinux/enforce", "1"), "warning", "may not use devices"),
    "AppArmor and LXC": ("host-apparmor", lambda t: t.program("lxc-start").write("sys/module/apparmor/parameters/enabled", "Y"),
        "note", "AppArmor is on"),
    "no user namespaces": ("host-rootless", lambda t: t.program("podman").write("proc/sys/user/max_user_namespaces", "0\n"),
        "warning", "user namespaces are off"),
    "user namespaces for root": ("host-rootless", lambda t: t.program("podman").write(
        "proc/sys/kernel/unprivileged_userns_clone", "0\n"), "warning", "for root only"),
    "no ids": ("host-rootless", lambda t: t.program("podman"), "note", "/etc/subuid"),
    "private root": ("host-propagation", lambda t: t.write("proc/self/mountinfo", PRIVATE), "note", "private mount"),
    "mounts odd": ("host-propagation", lambda t: t.write("proc/self/mountinfo", "x\n"), "warning", "cannot be read"),
    "cache for all": ("inventory-cache", lambda t: t.write("run/nvc/inventory.json", "{}", 0o644), "error", "mode 644"),
    "cache directory for all": ("inventory-cache", lambda t: t.directory("run/nvc", 0o777), "error", "mode 777"),
    "cache a link": ("inventory-cache", lambda t: (t.directory("run/nvc"),
        os.symlink("/etc/passwd", t.path("run/nvc/inventory.json"))), "error", "not a file of one name"),
}  # fmt: skip


@pytest.fixture
def tree(make_tree: Callable[[str], Tree]) -> Tree:
    return make_tree("h200")


def test_every_check_has_a_quiet_tree_and_one_where_it_speaks() -> None:
    names = [check.name for check in table.CHECKS]

    assert list(QUIET) == names
    # cgroup-filters asks the running kernel; see test_filters_are_for_root_to_see.
    assert {check for check, *_ in SPEAKS.values()} == set(names)


@pytest.mark.root
@pytest.mark.parametrize("name", QUIET)
def test_quiet(name: str, tree: Tree) -> None:
    change = QUIET[name]
    if change is not None:
        change(tree)
    found = tree.examine(name)

    assert [finding for finding in found if finding.level != "ok"] == []
    assert found != []


@pytest.mark.root
@pytest.mark.parametrize("case", SPEAKS)
def test_speaks(case: str, tree: Tree) -> None:
    name, change, level, words = SPEAKS[case]
    change(tree)
    found = tree.examine(name)

    assert [finding for finding in found if finding.level == level and words in finding.what + finding.why] != [], found
    check = next(check for check in table.CHECKS if check.name == name)
    for finding in found:
        assert (finding.check, finding.area) == (name, check.area)
        assert finding.level == "ok" or finding.why
        assert finding.level not in ("warning", "error") or finding.mend or "mounts cannot be read" in finding.what
        # What mends is a command, or a comment that a shell passes over.
        assert subprocess.run(["bash", "-n", "-c", finding.mend], check=False, timeout=20).returncode == 0, finding.mend
    assert "the check failed" not in str([finding.what for finding in found])


@pytest.mark.root
def test_divided_gpus_are_quiet(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("a100-mig-dev")

    for name in ("mig-nodes", "mig-devices", "nodes-present", "nodes-numbers"):
        assert {finding.level for finding in tree.examine(name)} == {"ok"}


@pytest.mark.root
def test_a_divided_gpu_whose_devices_changed(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("a100-mig-dev").spec(device="1:0")

    assert "offers devices that are gone" not in str(tree.examine("cdi-devices"))
    assert "does not offer GPU" in str(tree.examine("cdi-devices"))
    assert "offers devices that are gone: 1:42" in str(tree.spec(device="1:42").examine("cdi-devices"))


@pytest.mark.root
def test_the_broken_machine(make_tree: Callable[[str], Tree]) -> None:
    tree = make_tree("broken")

    assert "libnvidia-allocator" in str(tree.examine("ldcache-stale"))
    assert "libraries of another driver are left over" in str(tree.examine("libraries-version"))
    assert "built for EM_AARCH64" in str(tree.examine("libraries-needed"))


def test_filters_are_for_root_to_see(tree: Tree) -> None:
    from nvc.doctor import cgroup
    from nvc.doctor.probe import Probe

    # The running kernel's mounts decide whether there is anything to see; an ordinary user never sees an error.
    found = list(cgroup.filters(Probe(tree.host, uid=1000)))
    assert all(finding.level == "note" and finding.mend == "sudo nvc-py doctor" for finding in found)
    assert all(finding.level in ("ok", "note") for finding in cgroup.filters(Probe(tree.host)))
