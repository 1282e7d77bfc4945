"""Checks of control groups: their version, and whether systemd rewrites the device rules of running containers."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvc.doctor.engines import docker_settings, hooked, podman_files
from nvc.doctor.finding import Finding, error, note, ok, warning
from nvc.doctor.probe import table, texts
from nvc.formats import FormatError, mountinfo

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe


def _mounts(probe: Probe) -> tuple[mountinfo.Mount, ...]:
    return mountinfo.parse(probe.kernel("/proc/self/mountinfo").text())


def mode(probe: Probe) -> tuple[str, str]:
    """("v1", "v2", "hybrid" or "", mount point of cgroup2 or "")."""
    try:
        mounts = _mounts(probe)
    except FormatError:
        return "", ""
    unified = next((mount.point for mount in mounts if mount.kind == "cgroup2"), "")
    devices = any(mount.kind == "cgroup" and "devices" in mount.super_options for mount in mounts)
    if unified:
        return ("hybrid" if any(mount.kind == "cgroup" for mount in mounts) else "v2"), unified
    return ("v1" if devices else ""), ""


def refused_by_crun(probe: Probe) -> list[str]:
    """The controllers of v2 on a hybrid machine."""
    found, unified = mode(probe)
    return probe.kernel(f"{unified}/cgroup.controllers").text().split() if found == "hybrid" else []


def kind(probe: Probe) -> Iterator[Finding]:
    found, _ = mode(probe)
    if not found:
        yield error("no device cgroup is mounted", "sudo mount -t cgroup2 none /sys/fs/cgroup")
        return
    if controllers := refused_by_crun(probe):
        yield note(
            f"hybrid cgroups, and {', '.join(controllers)} belong to v2: crun refuses such a machine",
            "# boot with systemd.unified_cgroup_hierarchy=1",
        )
        return
    yield ok(f"cgroup {found}")


def filters(probe: Probe) -> Iterator[Finding]:
    """Whether device filters of v2 can be queried, the first step of changing them."""
    found, unified = mode(probe)
    if found != "v2":
        return
    if probe.uid != 0:
        yield note("cannot see device filters of cgroups: only root may query them", "sudo nvc-py doctor")
        return
    try:
        probe.ask_filters(unified)
    except OSError as problem:
        if problem.errno == errno.EPERM:
            yield note("device filters of cgroups cannot be queried with these rights (a container, a user namespace)")
        else:
            yield error(
                f"the kernel has no device filters for cgroup v2: {problem}", "# boot a kernel with CONFIG_CGROUP_BPF"
            )
        return
    yield ok("device filters can be read")


def ask_filters(path: str) -> None:
    """Query the device filters of a cgroup. Raises OSError."""
    from nvc.linux import bpf, syscalls

    with syscalls.open_path(path, os.O_RDONLY | os.O_DIRECTORY) as directory:
        bpf.query(directory)


def reload(probe: Probe) -> Iterator[Finding]:
    """systemd writes device rules again at daemon-reload, as the runtime requested them: without those of a hook."""
    if not probe.has_systemd():
        return
    drivers = systemd_engines(probe)
    users = sorted(set(drivers) & hooked(probe))
    if not users:
        yield ok("no engine combines systemd's cgroups with GPUs that a hook adds")
        return
    yield warning(
        f"{', '.join(users)}: a hook adds the GPUs, and systemd manages the containers' cgroups",
        "use CDI: sudo nvc-py cdi generate --output /var/run/cdi/nvidia.yaml, and --device nvidia.com/gpu=all; or "
        "nvc-runtime  # then restart running containers",
    )


def systemd_engines(probe: Probe) -> list[str]:
    """Engines whose containers have systemd's cgroups."""
    found = []
    settings = docker_settings(probe)
    options = texts(settings.get("exec-opts"))
    if probe.program("dockerd"):
        chosen = [option.partition("=")[2] for option in options if option.startswith("native.cgroupdriver=")]
        # Docker's default is systemd on v2 (its reference, dockerd: native.cgroupdriver).
        if (chosen or ["systemd" if mode(probe)[0] == "v2" else "cgroupfs"])[-1] == "systemd":
            found.append("docker")
    if probe.program("podman"):
        manager = "systemd"
        for place in podman_files(probe):
            manager = table(place.toml(), "engine").get("cgroup_manager", manager)
        if manager == "systemd":
            found.append("podman")
    if probe.program("crio"):
        found.append("crio")  # its default since 1.18, and what Kubernetes wants
    return found
