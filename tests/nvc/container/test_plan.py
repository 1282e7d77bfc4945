"""The plan: what goes where, with which attributes, for which driver capability, in which order.

Source: libnvidia-container.md 5.1 to 5.6, 6.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nvc.base.errors import MountError
from nvc.container.operations import AllowDevices, ApplicationProfile, BindMount, Symlink, Tmpfs, UpdateLdcache
from nvc.container.plan import (
    MOUNTS,
    PROC_DRIVER,
    SIMULATED_PROC,
    device_mig_caps,
    device_mount,
    driver_mount,
    imex_channel,
    ldcache_update,
    merge,
    mig_access,
    mig_config,
    mig_monitor,
)
from nvc.model import (
    DeviceNode,
    ImexChannel,
)
from tests.support.plans import CAPS, CONTAINER, DRIVER, PROC_FILES, V, gpu, nvcap, rules, scope, targets

if TYPE_CHECKING:
    pass


def test_driver_in_the_order_of_the_reference() -> None:
    operations = driver_mount(scope("compute,utility,graphics,compat32"), DRIVER, PROC_FILES)

    assert operations[0] == Tmpfs(PROC_DRIVER, 0o555, (), PROC_FILES)
    assert operations[1] == ApplicationProfile()
    assert [operation.container_path for operation in operations if isinstance(operation, BindMount | Symlink)] == [
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-cuda-mps-server",
        f"/usr/lib64/libnvidia-ml.so.{V}",
        f"/usr/lib64/libcuda.so.{V}",
        f"/usr/lib64/libGLX_nvidia.so.{V}",
        f"/usr/lib32/libcuda.so.{V}",
        "/usr/lib64/libcuda.so",
        "/usr/lib64/libGLX_indirect.so.0",
        "/usr/lib32/libcuda.so",
        f"/lib/firmware/nvidia/{V}/gsp.bin",
        "/run/nvidia-persistenced/socket",
        "/tmp/nvidia-mps",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]


@pytest.mark.parametrize(
    ("words", "present", "absent"),
    [
        pytest.param("", ["/dev/nvidiactl", "gsp.bin"], ["libcuda", "nvidia-smi", "uvm", "socket", "mps"], id="none"),
        pytest.param("utility", ["nvidia-smi", "libnvidia-ml", "socket"], ["libcuda", "uvm", "mps"], id="utility"),
        pytest.param(
            "compute", ["libcuda", "/dev/nvidia-uvm", "mps-server", "nvidia-mps"], ["nvidia-smi"], id="compute"
        ),
        pytest.param("video", ["libcuda", "libnvcuvid", "uvm", "nvidia-mps"], ["mps-server"], id="video has libcuda"),
        pytest.param("graphics", ["libGLX"], ["libcuda", "modeset"], id="graphics"),
        pytest.param("display", ["libGLX", "modeset"], ["libcuda"], id="display has graphics"),
        pytest.param("compat32", [], ["lib32"], id="compat32 alone"),
        pytest.param("compute,compat32", ["lib32/libcuda"], [], id="compat32"),
    ],
)
def test_capabilities_decide(words: str, present: list[str], absent: list[str]) -> None:
    shown = "\n".join(targets(driver_mount(scope(words), DRIVER, ())))

    assert [] == [name for name in present if name not in shown]
    assert [] == [name for name in absent if name in shown]


def test_attributes_of_every_kind() -> None:
    # The table of libnvidia-container.md 5.1; nvidia-caps is read-only as well, which section 11 leaves open.
    expected = {
        "binary": "ro nodev nosuid",
        "library": "ro nodev nosuid",
        "library32": "ro nodev nosuid",
        "firmware": "ro nodev nosuid",
        "store": "ro nodev nosuid",
        "csv-file": "ro nodev nosuid",
        "config": "ro nodev nosuid",
        "module": "ro nodev nosuid",
        "csv-directory": "ro nodev nosuid",
        "ipc": "nodev nosuid noexec",
        "node": "ro nosuid noexec",
        # Not in the table: what a simulated machine's manager serves is a file, and "ro" would refuse to open it.
        "served-node": "nodev nosuid noexec",
        "proc-gpu": "ro nodev nosuid noexec",
        "nvcap": "ro nodev nosuid noexec",
        "nvcap-tree": "ro nodev nosuid noexec",
        "nvcap-nodes": "ro nosuid noexec",
    }

    assert expected == {what: " ".join(attributes) for what, (_, attributes) in MOUNTS.items()}


def test_a_served_node_is_a_file_and_needs_no_cgroup_rule() -> None:
    operations = merge(device_mount(scope("utility", served=("/dev/nvidia3",)), gpu(3)))

    assert BindMount("/dev/nvidia3", "/dev/nvidia3", "regular", ("nodev", "nosuid", "noexec")) in operations
    assert not [operation for operation in operations if isinstance(operation, AllowDevices)]


def test_a_gpu() -> None:
    operations = merge(device_mount(scope("graphics"), gpu(3)))

    assert operations == (
        Tmpfs(PROC_DRIVER, 0o555, (f"{PROC_DRIVER}/gpus/0000:03:00.0",)),
        ApplicationProfile((3,)),
        BindMount("/dev/nvidia3", "/dev/nvidia3", "device", ("ro", "nosuid", "noexec"), 195, 3),
        BindMount(
            f"{PROC_DRIVER}/gpus/0000:03:00.0",
            f"{PROC_DRIVER}/gpus/0000:03:00.0",
            "directory",
            ("ro", "nodev", "nosuid", "noexec"),
        ),
        AllowDevices(((195, 3),)),
    )


def test_a_gpu_without_a_proc_directory_or_graphics_is_its_node() -> None:
    assert ["/dev/nvidia3"] == targets(device_mount(scope(), gpu(3).replace(proc_path="")))
    assert not any(
        isinstance(o, Tmpfs | ApplicationProfile) for o in device_mount(scope(), gpu(3).replace(proc_path=""))
    )


def test_no_devbind_keeps_rules_and_proc() -> None:
    operations = merge(device_mount(scope(devbind=False), gpu(0)))

    assert [gpu(0).proc_path] == targets(operations)
    assert [(195, 0)] == rules(operations)


def test_no_cgroups_keeps_nodes() -> None:
    operations = merge((*driver_mount(scope(cgroups=False), DRIVER, ()), *device_mount(scope(cgroups=False), gpu(0))))

    assert [] == rules(operations)
    assert "/dev/nvidia0" in targets(operations)


def test_two_compute_instances_of_one_gpu_instance_mount_its_access_once() -> None:
    first, second, _ = gpu(0).mig_devices
    operations = merge((*mig_access(scope(), first), *mig_access(scope(), second)))

    assert targets(operations) == [
        f"{CAPS}/gpu0/mig/gi1/access",
        "/dev/nvidia-caps/nvidia-cap12",
        f"{CAPS}/gpu0/mig/gi1/ci0/access",
        "/dev/nvidia-caps/nvidia-cap13",
        f"{CAPS}/gpu0/mig/gi1/ci1/access",
        "/dev/nvidia-caps/nvidia-cap14",
    ]
    assert rules(operations) == [(237, 12), (237, 13), (237, 14)]
    (system,) = (operation for operation in operations if isinstance(operation, Tmpfs))
    assert [file.path for file in system.files] == [path for path in targets(operations) if path.startswith("/proc")]


def test_nvcaps_of_the_proc_style_have_no_nodes() -> None:
    mig = gpu(0).mig_devices[0].replace(gi_access=nvcap("gi", None), ci_access=nvcap("ci", None))

    assert [f"{CAPS}/gi", f"{CAPS}/ci"] == targets(merge(mig_access(scope(), mig)))
    assert [] == rules(mig_access(scope(), mig))


def test_config_and_monitor_mount_the_trees_once() -> None:
    config, monitor = nvcap("mig/config", 1), nvcap("mig/monitor", 2)
    operations = merge((*mig_config(scope(devbind=False), config), *mig_monitor(scope(devbind=False), monitor)))

    assert [CAPS, "/dev/nvidia-caps"] == targets(operations)
    assert [(237, 1), (237, 2)] == rules(operations)


def test_the_capability_tree_covers_access_files_and_nodes_below_it() -> None:
    mig = gpu(0).mig_devices[0]
    operations = merge((*mig_access(scope(), mig), *mig_config(scope(), nvcap("mig/config", 1))))

    assert [CAPS, "/dev/nvidia-caps"] == targets(operations)
    assert [(237, 12), (237, 13), (237, 1)] == rules(operations)


def test_all_nvcaps_of_a_gpu_are_rules_only() -> None:
    operations = device_mig_caps(scope(), gpu(0))

    assert operations == (AllowDevices(tuple((237, n) for n in range(3, 9))),)
    assert () == device_mig_caps(scope(cgroups=False), gpu(0))


def test_imex_channel() -> None:
    node = DeviceNode("/dev/nvidia-caps-imex-channels/channel5", 240, 5)
    operations = imex_channel(scope(), ImexChannel(5, node))

    assert [node.path] == targets(operations)
    assert [(240, 5)] == rules(operations)


def test_missing_imex_channel_says_so() -> None:
    with pytest.raises(MountError) as caught:
        imex_channel(scope(), ImexChannel(5, None))

    assert "mount error: stat failed: /dev/nvidia-caps-imex-channels/channel5: no such file" in str(caught.value)
    assert "--load-kmods" in caught.value.hint


def test_loader_cache_directories_in_search_order() -> None:
    (update,) = ldcache_update(CONTAINER, compat="/usr/local/cuda-12/compat", no_pivot=True, limit=3.0)

    assert update == UpdateLdcache(
        "/sbin/ldconfig", ("/usr/local/cuda-12/compat", "/usr/lib64", "/usr/lib32"), True, 3.0
    )


def test_a_host_without_ldconfig_updates_no_cache() -> None:
    assert () == ldcache_update(CONTAINER.replace(ldconfig=""))


def test_merge_makes_one_tmpfs_one_rule_set_and_updates_the_cache_last() -> None:
    operations = merge(
        (
            *ldcache_update(CONTAINER),
            *driver_mount(scope("display"), DRIVER, PROC_FILES),
            *device_mount(scope("display"), gpu(70)),
            *device_mount(scope("display"), gpu(1)),
        )
    )

    kinds = [type(operation).__name__ for operation in operations]
    assert kinds[:2] == ["Tmpfs", "ApplicationProfile"]
    assert kinds[-2:] == ["AllowDevices", "UpdateLdcache"]
    assert operations[1] == ApplicationProfile((1, 70))
    assert operations[0] == Tmpfs(
        PROC_DRIVER, 0o555, (f"{PROC_DRIVER}/gpus/0000:46:00.0", f"{PROC_DRIVER}/gpus/0000:01:00.0"), PROC_FILES
    )
    assert rules(operations) == [(195, 255), (195, 254), (195, 70), (195, 1)]


def test_simulated_machine_covers_the_directory_that_procfs_has() -> None:
    operations = driver_mount(scope(proc=SIMULATED_PROC), DRIVER, PROC_FILES)

    assert operations[0] == Tmpfs("/proc/driver", 0o555, (), PROC_FILES)
