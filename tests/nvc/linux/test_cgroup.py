"""nvc.linux.cgroup.find: which cgroup decides, from the files of a made-up /proc."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nvc.linux import cgroup

V1_MOUNT = "36 31 0:33 {root} /sys/fs/cgroup/devices rw,relatime shared:9 - cgroup cgroup rw,devices"
V2_MOUNT = "41 31 0:38 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


def find(tmp_path: Path, groups: str, mounts: str, *, mount_pid: int = 8) -> tuple[int, str]:
    for pid, name, text in ((7, "cgroup", groups), (mount_pid, "mountinfo", OTHERS + mounts + "\n")):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc" / str(pid) / name).write_text(text, encoding="utf-8")
    version, path = cgroup.find(proc_root=str(tmp_path), pid=7, mount_pid=mount_pid)
    return version, path.removeprefix(str(tmp_path))


V1 = V1_MOUNT.format(root="/")
V2 = V2_MOUNT.format(root="/")
FOUND = [
    pytest.param("5:devices:/docker/1\n", V1, (1, "/sys/fs/cgroup/devices/docker/1"), id="v1"),
    pytest.param("5:devices:/\n", V1, (1, "/sys/fs/cgroup/devices"), id="v1-top"),
    pytest.param("0::/a.slice/b.scope\n", V2, (2, "/sys/fs/cgroup/a.slice/b.scope"), id="v2"),
    pytest.param("5:devices:/x\n0::/y\n", f"{V2}\n{V1}", (1, "/sys/fs/cgroup/devices/x"), id="hybrid-prefers-v1"),
    pytest.param("5:devices:/x\n0::/y\n", V2, (2, "/sys/fs/cgroup/y"), id="hybrid-without-v1-mounted"),
    pytest.param("1:net_cls:/\n0::/y\n", V2, (2, "/sys/fs/cgroup/y"), id="other-v1-controllers"),
    pytest.param(
        "5:cpu,devices:/x\n",
        V1.replace("rw,devices", "rw,cpu,devices"),
        (1, "/sys/fs/cgroup/devices/x"),
        id="co-mounted",
    ),
    pytest.param(
        "5:devices:/docker2/1\n",
        V1_MOUNT.format(root="/docker"),
        (1, "/sys/fs/cgroup/devices/docker2/1"),
        id="mount-prefix-of-another-name",
    ),
    pytest.param(
        "5:devices:/docker/1\n", V1_MOUNT.format(root="/docker"), (1, "/sys/fs/cgroup/devices/1"), id="mount-prefix"
    ),
    pytest.param("0::/a:b:c\n", V2, (2, "/sys/fs/cgroup/a:b:c"), id="colons-in-the-path"),
    pytest.param(
        "0::/y\n", V2.replace("/sys/fs/cgroup", "/sys/fs/my\\040group"), (2, "/sys/fs/my group/y"), id="escapes"
    ),
    pytest.param("1:name=devices:/z\n0::/y\n", V2, (2, "/sys/fs/cgroup/y"), id="named-hierarchy"),
    # A container names cgroups and mount points below its own as it likes: a newline alone cannot be in a name, or is
    # escaped. Everything else that ends a line somewhere was taken for one, and the rules went to another cgroup.
    *(
        pytest.param(
            f"9:cpu:/mine/x{end}5:devices:/other\n5:devices:/mine\n",
            f"50 1 0:99 / /x{end}{V1_MOUNT.format(root='/')[:-8]}x rw - tmpfs x rw\n{V1}",
            (1, "/sys/fs/cgroup/devices/mine"),
            id=f"line-of-its-own-{ord(end):x}",
        )
        for end in "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
    ),
]


@pytest.mark.parametrize(("groups", "mounts", "expected"), FOUND)
def test_cgroup_is_found(groups: str, mounts: str, expected: tuple[int, str], tmp_path: Path) -> None:
    assert expected == find(tmp_path, groups, mounts)


REFUSED = [
    pytest.param("5:devices\n", V1, "malformed cgroup entry: 5:devices", id="two-fields"),
    pytest.param("1:cpu:/\n", V1, "no devices or unified cgroup entries found", id="no-entry"),
    pytest.param("", V1, "no devices or unified cgroup entries found", id="empty"),
    pytest.param("5:devices:/x\n", "", "no cgroup filesystem mounted for the devices subsytem", id="v1-not-mounted"),
    pytest.param("0::/x\n", V1, "no cgroup2 filesystem in mountinfo file", id="v2-not-mounted"),
    pytest.param(
        "0::/x\n", V2_MOUNT.format(root="/../.."), "relative path in mount prefix: /../..", id="outside-namespace"
    ),
    pytest.param("0::/x\n", "41 31 - cgroup2", "malformed mountinfo entry: 41 31 - cgroup2", id="short-line"),
]


@pytest.mark.parametrize(("groups", "mounts", "message"), REFUSED)
def test_refusal_has_the_reference_s_words(groups: str, mounts: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        find(tmp_path, groups, mounts)
    assert message in str(caught.value)


def test_process_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="failed to open cgroup path for pid '99': no such file or directory") as caught:
        cgroup.find(proc_root=str(tmp_path), pid=99, mount_pid=99)
    assert caught.value.errno == errno.ENOENT


def test_own_cgroup_is_found_and_opens() -> None:
    version, path = cgroup.find(proc_root="/", pid=os.getpid(), mount_pid=os.getpid())
    with cgroup.open_directory(path) as directory:
        assert os.stat("devices.list" if version == 1 else "cgroup.controllers", dir_fd=directory.fileno())
