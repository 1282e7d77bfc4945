"""Checks of the running kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nvc.doctor.driver import version
from nvc.doctor.finding import Finding, error, note, ok, warning

if TYPE_CHECKING:
    from nvc.doctor.probe import Probe

#: Feature -> (first kernel, the fallback without it, whether containers fail without it);
#: docs/internals/kernel-features.md.
FEATURES = {
    "openat2": ("5.6", "paths in containers are walked component by component", False),
    "new mount calls": ("5.2", "mount(2) and a remount are used", False),
    "mount_setattr": ("5.12", "a remount sets the flags", False),
    "pidfd": ("5.3", "helpers are polled", False),
    "memfd": ("3.17", "the loader cache of containers cannot be refreshed", True),
}


def try_calls() -> dict[str, str]:
    """Feature -> "", or why it is missing. No call changes anything."""
    from nvc.linux import mounts, syscalls

    def openat2() -> None:
        with syscalls.open_path("/", os.O_PATH) as root:
            syscalls.openat2(root, ".", os.O_PATH, 0x10)  # linux/openat2.h: RESOLVE_IN_ROOT

    def new_mounts() -> None:
        syscalls.fsopen("tmpfs").close()

    def setattr() -> None:
        if not mounts.modern():
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def pidfd() -> None:
        os.close(os.pidfd_open(os.getpid()))

    def memfd() -> None:
        os.close(os.memfd_create("nvc-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))

    calls = (openat2, new_mounts, setattr, pidfd, memfd)
    return {name: _missing(call) for name, call in zip(FEATURES, calls, strict=True)}


def _missing(call: Callable[[], None]) -> str:
    try:
        call()
    except OSError as problem:
        # EPERM: the kernel has the call, which needs more rights than this process has.
        return "" if problem.errno == errno.EPERM else os.strerror(problem.errno or errno.ENOSYS).lower()
    return ""


def calls(probe: Probe) -> Iterator[Finding]:
    found = probe.kernel_calls()
    for name, why in found.items():
        first, without, fatal = FEATURES[name]
        if why and fatal:
            yield error(f"{name} is not available ({why})", f"# boot Linux {first} or newer", without)
        elif why:
            yield note(f"{name} is not available ({why}): {without}; available since Linux {first}")
    if found and not any(found.values()):
        yield ok(", ".join(found))


def notify(probe: Probe) -> Iterator[Finding]:
    """Seccomp user notification, which the guard needs."""
    text = probe.kernel("/proc/sys/kernel/seccomp/actions_avail").text()
    if not text:
        yield warning("seccomp is not available", "# boot a kernel with CONFIG_SECCOMP_FILTER")
    elif "user_notif" not in text.split():
        yield note("no seccomp user notification (Linux 5.0): only the preloaded library can enforce limits")
    else:
        yield ok("seccomp with user notification")


def jit(probe: Probe) -> Iterator[Finding]:
    """With constant blinding, a container's device filter cannot be read back and extended."""
    from nvc.doctor.cgroup import mode

    value = probe.kernel("/proc/sys/net/core/bpf_jit_harden").text().strip()
    if value == "2" and mode(probe)[0] == "v2":
        yield warning(
            "net.core.bpf_jit_harden is 2",
            "echo net.core.bpf_jit_harden=1 | sudo tee /etc/sysctl.d/60-nvc.conf; sudo sysctl --system"
            "  # or use CDI, which needs no change to a filter",
        )
    elif value:
        yield ok(f"net.core.bpf_jit_harden is {value}")


def lockdown(probe: Probe) -> Iterator[Finding]:
    """Secure Boot: a kernel in lockdown loads signed modules only."""
    text = probe.kernel("/sys/kernel/security/lockdown").text()
    word = text.partition("[")[2].partition("]")[0]
    if word in ("integrity", "confidentiality") and not version(probe):
        yield warning(
            f"the kernel is locked down ({word}), and no NVIDIA driver is loaded",
            "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der  # then reboot, and enrol the key",
        )
    elif word:
        yield ok(f"lockdown: {word}")
