"""Checks of the host: security modules, settings, files of nvc-py."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nvc.base.errors import InputError
from nvc.doctor.finding import Finding, error, note, ok, skipped, warning
from nvc.doctor.probe import table
from nvc.driver.inventory import SIZE_LIMIT
from nvc.driver.places import CACHE
from nvc.formats import FormatError, mountinfo

if TYPE_CHECKING:
    from nvc.doctor.probe import Place, Probe

#: The first that exists is used.
CONFIGS = ("/etc/nvc/config.toml", "/etc/nvidia-container-runtime/config.toml")
_ENV_KEY = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_MOUNT_KEY = "accept-nvidia-visible-devices-as-volume-mounts"
_CLI = "nvidia-container-cli"


def _config(probe: Probe) -> tuple[Place | None, dict[str, Any]]:
    place = next((place for place in map(probe.system, CONFIGS) if place.status(follow=False) is not None), None)
    return place, place.toml() if place is not None else {}


def _mistakes(place: Place) -> list[InputError]:
    from nvc.doctor.config_check import mistakes

    if place.status() is None:
        return [InputError(f"{place}: dangling symbolic link", hint="hook, runtime and agent refuse it")]
    return mistakes(place.data(), str(place), all_of_them=False)


def settings(probe: Probe) -> Iterator[Finding]:
    """config.toml of hook and runtime."""
    place, content = _config(probe)
    if place is None:
        yield ok("no config.toml: the defaults apply")
        return
    edit = f"sudoedit {shlex.quote(str(place))}"
    mistakes = _mistakes(place)
    wrong = bool(mistakes)
    if mistakes:
        first, more = mistakes[0], len(mistakes) - 1
        others = f"; {more} more: nvc-py config validate {shlex.quote(str(place))}" if more else ""
        yield error(f"{first.message}: no GPU container starts", edit, f"{first.hint}{others}".lstrip("; "))
    cli = table(content, _CLI)
    ldconfig, root = cli.get("ldconfig"), cli.get("root")
    if isinstance(ldconfig, str) and ldconfig.startswith("@/") and probe.system(ldconfig[1:]).status() is None:
        wrong = True
        yield error(f"{place}: {_CLI}.ldconfig = {ldconfig!r} does not exist", f'{edit}  # write "@/sbin/ldconfig"')
    if isinstance(root, str) and root not in ("", "/") and not probe.system(root).exists():
        wrong = True
        yield error(f"{place}: {_CLI}.root = {root!r} does not exist", edit)
    if cli.get("no-cgroups") is True and probe.uid == 0 and not probe.host.simulated:
        yield note(
            f"{place}: no-cgroups is on, which is for rootless engines: others get `Operation not permitted`", edit
        )
    if not wrong:
        yield ok(f"{place} can be used")


def requests(probe: Probe) -> Iterator[Finding]:
    """Whether any image can request every GPU with a variable."""
    place, content = _config(probe)
    if content.get(_ENV_KEY, True) is False:
        yield ok("images of unprivileged containers cannot request GPUs by a variable")
        return
    yield note(
        "any image can request all GPUs with NVIDIA_VISIBLE_DEVICES, where the hook or runtime handles its containers",
        f"sudoedit {shlex.quote(str(place or probe.system(CONFIGS[0])))}  # {_ENV_KEY} = false, {_MOUNT_KEY} = true",
        "acceptable on a machine with one user",
    )


def selinux(probe: Probe) -> Iterator[Finding]:
    if probe.kernel("/sys/fs/selinux/enforce").text().strip() != "1":
        yield ok("SELinux is not enforcing")
        return
    value = probe.kernel("/sys/fs/selinux/booleans/container_use_devices").text().split()
    if value and value[0] == "1":
        yield ok("SELinux is enforcing, and containers may use devices (container_use_devices)")
    else:
        yield warning(
            "SELinux is enforcing, and containers may not use devices",
            "sudo setsebool -P container_use_devices on  # or, for one container: --security-opt label=disable",
        )


def apparmor(probe: Probe) -> Iterator[Finding]:
    enabled = probe.kernel("/sys/module/apparmor/parameters/enabled").text().strip() == "Y"
    if enabled and any(map(probe.program, ("lxc-start", "incusd", "lxd"))):
        yield note(
            "AppArmor is on: LXC's profile lets the nvidia hook mount only in unprivileged containers",
            "# lxc.apparmor.profile = unconfined  # in the container's configuration, where the hook is denied",
        )
    else:
        yield ok("AppArmor is on; engines' profiles allow GPUs" if enabled else "AppArmor is off")


def cache(probe: Probe) -> Iterator[Finding]:
    """The inventory is used only if root alone can have written it."""
    owner = 0 if probe.host.system == "/" else None
    place = probe.system(CACHE)
    directory = probe.system(CACHE.rpartition("/")[0])
    fix = f"sudo rm -rf {shlex.quote(str(directory))}"
    found = directory.status(follow=False)
    if found is None:
        yield skipped("there is no inventory yet")
        return
    wrong = ""
    if not stat.S_ISDIR(found.st_mode):
        wrong = f"{directory} is not a directory"
    elif found.st_mode & 0o022 or (owner is not None and found.st_uid != owner):
        wrong = f"{directory} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}"
    else:
        file = place.status(follow=False)
        if file is None:
            yield skipped("there is no inventory yet")
            return
        if not stat.S_ISREG(file.st_mode) or file.st_nlink != 1 or file.st_size > SIZE_LIMIT:
            wrong = f"{place} is not a regular file with one link and a plausible size"
        elif file.st_mode & 0o077 or (owner is not None and file.st_uid != owner):
            wrong = f"{place} belongs to user {file.st_uid} with mode {stat.S_IMODE(file.st_mode):o}"
    if wrong:
        yield error(wrong, fix)
    else:
        yield ok(f"only root can write the inventory in {place}")


def propagation(probe: Probe) -> Iterator[Finding]:
    try:
        mounts = mountinfo.parse(probe.kernel("/proc/self/mountinfo").text())
    except FormatError as problem:
        yield warning(f"the mounts cannot be read: {problem}", "cat /proc/self/mountinfo  # what the kernel shows")
        return
    root = next((mount for mount in mounts if mount.point == "/"), None)
    if root is None or any(field.startswith("shared:") for field in root.tags):
        yield ok("/ is a shared mount")
    else:
        yield note("/ is a private mount", "sudo mount --make-rshared /")


def rootless(probe: Probe) -> Iterator[Finding]:
    """What rootless engines need."""
    if not any(map(probe.program, ("podman", "dockerd-rootless.sh"))):
        return
    wrong = False
    if probe.kernel("/proc/sys/user/max_user_namespaces").text().strip() == "0":
        wrong = True
        yield warning("user namespaces are off", "sudo sysctl -w user.max_user_namespaces=15000")
    if probe.kernel("/proc/sys/kernel/unprivileged_userns_clone").text().strip() == "0":
        wrong = True
        yield warning("only root can create user namespaces", "sudo sysctl -w kernel.unprivileged_userns_clone=1")
    for path in ("/etc/subuid", "/etc/subgid"):
        if not probe.system(path).text().strip():
            wrong = True
            yield note(f"{path} has no range of ids for any user", "sudo usermod --add-subuids 100000-165535 "
                       "--add-subgids 100000-165535 \"$USER\"")  # fmt: skip
    if not wrong:
        yield ok("rootless containers can run; they get GPUs by CDI")
