"""Checks of a node: the kubelet's directories, the engine's configuration, the agent, the node's rules for shares."""

from __future__ import annotations

import shlex
import socket
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nvc.base.errors import NvcError
from nvc.base.record import Record
from nvc.cdi import files
from nvc.doctor import cgroup, engines
from nvc.doctor.finding import Finding, error, note, ok, warning
from nvc.doctor.host import CONFIGS
from nvc.doctor.probe import table, texts
from nvc.formats import FormatError, mountinfo
from nvc.kube.check import as_text, at
from nvc.kube.names import DEVICE_PLUGINS, DRIVER, PLUGINS, REGISTRY, RUNTIME_CLASS
from nvc.request.hook_config import HookConfig

if TYPE_CHECKING:
    from nvc.doctor.probe import Place, Probe
    from nvc.kube.check import Seen

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: What does not outlive a reboot.
_VOLATILE = ("tmpfs", "ramfs")
#: Where engines look for CDI specs when no file says it.
_CDI_DEFAULT: tuple[str, ...] = files.DIRECTORIES
_ENV_KEY = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_HANDLERS_FIX = {
    "containerd": "sudo nvc-py runtime configure --runtime=containerd --runtime-name={} --cdi; "
    "sudo systemctl restart containerd",
    "crio": "sudo nvc-py runtime configure --runtime=crio --runtime-name={}; sudo systemctl restart crio",
}
_CONNECT_S = 2.0


class Engine(Record):
    """The engine's configuration for pods. name: of the program. runtimes: handler -> program. default: handler.

    cdi: whether CDI names are resolved. directories: of CDI specs.
    """

    name: str
    file: str
    runtimes: dict[str, str]
    default: str
    cdi: bool
    directories: tuple[str, ...]


def engine(seen: Seen) -> Engine | None:
    """Of this node; None where neither containerd nor CRI-O is. Raises BadFile."""
    probe = seen.probe
    used = as_text(at(seen.node_object(), "status", "nodeInfo", "containerRuntimeVersion"))
    has_crio = bool(probe.program("crio")) or probe.system(engines.CRIO_DROP_INS).exists()
    has_containerd = bool(probe.program("containerd")) or probe.system(engines.CONTAINERD).exists()
    if used.startswith("cri-o") or (has_crio and not has_containerd):
        return _crio(probe)
    return _containerd(probe, used) if has_containerd else None


def _containerd(probe: Probe, used: str) -> Engine:
    runtimes: dict[str, str] = {}
    default, directories = "runc", _CDI_DEFAULT
    cdi = used.startswith("containerd://2")
    for _, content in engines.containerd_files(probe):
        plugin = engines.cri_plugin(content)
        version = content.get("version", 1)
        is_new = isinstance(version, int) and version >= engines.CDI_DEFAULT
        cdi = plugin.get("enable_cdi", cdi or is_new) is True
        directories = tuple(texts(plugin.get("cdi_spec_dirs"))) or directories
        default = as_text(table(plugin, "containerd").get("default_runtime_name")) or default
        for name, runtime in table(plugin, "containerd", "runtimes").items():
            runtimes[name] = as_text(table(runtime, "options").get("BinaryName"))
    return Engine("containerd", engines.CONTAINERD, runtimes, default, cdi, directories)


def _crio(probe: Probe) -> Engine:
    runtimes: dict[str, str] = {}
    default, directories = "runc", _CDI_DEFAULT
    for content in engines.crio_files(probe):
        settings = table(content, "crio", "runtime")
        directories = tuple(texts(settings.get("cdi_spec_dirs"))) or directories
        default = as_text(settings.get("default_runtime")) or default
        runtimes |= {name: as_text(table(of).get("runtime_path")) for name, of in table(settings, "runtimes").items()}
    return Engine("crio", engines.CRIO_DROP_INS, runtimes, default, True, directories)


def kubelet(seen: Seen) -> Iterator[Finding]:
    """Its directories, in which the driver and the device plugin are found."""
    place = seen.probe.system(seen.kubelet)
    if not place.exists():
        yield note(
            f"{place} does not exist: no kubelet runs here", "nvc-py kube check --kubelet DIR  # where it is elsewhere"
        )
        return
    for name, of in (
        (REGISTRY, "drivers of claims"),
        (PLUGINS, "drivers of claims"),
        (DEVICE_PLUGINS, "device plugins"),
    ):
        if not place.below(name).exists():
            yield warning(
                f"{place}/{name} does not exist: the kubelet finds no {of}",
                "# the kubelet makes it when it starts; is --root-dir another directory? then --kubelet DIR",
            )
        else:
            yield ok(f"{place}/{name} is there")


def served(seen: Seen) -> Iterator[Finding]:
    """Whether a driver or a device plugin of ours answers."""
    place = seen.probe.system(seen.kubelet)
    if not place.exists():
        return
    driver = [name for name in place.below(REGISTRY).names() if name.startswith(DRIVER) and name.endswith(".sock")]
    plugin = [
        name for name in place.below(DEVICE_PLUGINS).names() if name.startswith("nvc-") and name.endswith(".sock")
    ]
    for directory, names, what in ((REGISTRY, driver, "the driver"), (DEVICE_PLUGINS, plugin, "the device plugin")):
        for name in names:
            path = place.below(directory).below(name)
            if _answers(path):
                yield ok(f"{what} answers at {path}")
            else:
                yield warning(
                    f"nothing answers at {path}: {what} has ended",
                    "# start it again; the kubelet asks every now and then",
                )
    if not driver and not plugin:
        yield error(
            "neither the driver nor the device plugin serves this kubelet: pods get no GPU",
            "nvc-py kube driver --node NAME  # or nvc-py kube device-plugin, without DRA",
        )
    if driver and plugin:
        yield warning(
            "driver and device plugin of nvc-py both serve this kubelet: a GPU may be given twice", "# stop one of them"
        )


def _answers(place: Place) -> bool:
    with socket.socket(socket.AF_UNIX) as tried:
        tried.settimeout(_CONNECT_S)
        try:
            tried.connect(str(place))
        except OSError:
            return False
    return True


def handler(seen: Seen) -> Iterator[Finding]:
    """Whether nvc-runtime starts the pods' containers: as the RuntimeClass's handler, or as the default."""
    found = engine(seen)
    if found is None:
        yield note("neither containerd nor CRI-O is configured here")
        return
    wanted = seen.handler() or RUNTIME_CLASS
    fix = _HANDLERS_FIX[found.name].format(wanted)
    ours = sorted(name for name, program in found.runtimes.items() if engines.is_ours(program))
    lost = [name for name in ours if not seen.probe.program(found.runtimes[name])]
    for name in lost:
        yield error(f"{found.file}: runtime {name} is {found.runtimes[name]}, which does not exist", fix)
    if found.default in ours:
        yield ok(f"{found.name}: nvc-runtime is the default runtime ({found.default})")
    elif wanted in ours:
        yield ok(f"{found.name}: the handler {wanted} is nvc-runtime")
    elif ours:
        yield error(
            f"{found.name}: RuntimeClass {RUNTIME_CLASS} has the handler {wanted}, nvc-runtime is {', '.join(ours)}",
            fix,
        )
    else:
        yield error(f"{found.name} does not know nvc-runtime: the guard enforces no share", fix)


def runtime(seen: Seen) -> Iterator[Finding]:
    """Which runtime nvc-runtime becomes."""
    if engine(seen) is None:
        return
    place, content = _config(seen.probe)
    names = texts(table(content, "nvidia-container-runtime").get("runtimes")) or list(HookConfig().runtimes)
    found = next((path for path in map(seen.probe.program, names) if path), "")
    edit = f"sudoedit {shlex.quote(str(place))}  # runtimes of section [nvidia-container-runtime]"
    if not found:
        yield error(f"nvc-runtime finds none of {', '.join(names)}: no container starts", edit)
    elif not found.endswith("/crun"):
        yield ok(f"nvc-runtime becomes {found}")
    elif cgroup.refused_by_crun(seen.probe):
        yield error(f"nvc-runtime becomes {found}, which refuses this machine's hybrid cgroups", edit)
    else:
        yield note(f"nvc-runtime becomes {found}; containerd 2 needs 1.14.3 or newer", f"{found} --version")


def cdi(seen: Seen) -> Iterator[Finding]:
    """Whether the engine resolves CDI names, and looks where ours are."""
    found = engine(seen)
    if found is None:
        return
    edit = f"sudoedit {shlex.quote(found.file)}  # {{}}; sudo systemctl restart {found.name}"
    if not found.cdi:
        yield error(
            f"{found.file}: enable_cdi is off, so containers do not start with a GPU",
            _HANDLERS_FIX["containerd"].format(seen.handler() or RUNTIME_CLASS),
        )
    else:
        yield ok(f"{found.name} resolves CDI names")
    if seen.cdi not in found.directories:
        wanted = ", ".join(f'"{path}"' for path in (*found.directories, seen.cdi))
        yield error(
            f"{found.name} looks for CDI specs in {', '.join(found.directories)}, and not in {seen.cdi}",
            edit.format(f"cdi_spec_dirs = [{wanted}]"),
        )
    else:
        yield ok(f"{found.name} looks for CDI specs in {seen.cdi}")


def cdi_directory(seen: Seen) -> Iterator[Finding]:
    """The directory of CDI specs: root's, and there after a reboot."""
    place = seen.probe.system(seen.cdi)
    status = place.status()
    if status is None:
        yield note(f"{place} does not exist yet: the driver or the device plugin makes it")
        return
    owner = 0 if seen.probe.host.system == "/" else status.st_uid
    if status.st_uid != owner or status.st_mode & _OTHERS_WRITE:
        yield error(
            f"{place} can be written by others than root: they would say what containers get",
            f"sudo chown root:root {shlex.quote(str(place))}; sudo chmod 755 {shlex.quote(str(place))}",
        )
    kind = _file_system(seen.probe, seen.cdi)
    if kind in _VOLATILE:
        yield error(
            f"{place} is on {kind}: after a reboot the kubelet starts containers whose CDI specs are gone",
            "# use a directory of the disk: --cdi-dir, and the engine's cdi_spec_dirs",
        )
    broken = [file for file in files.find([place.actual() if place.root == "/" else str(place)]) if file.problems]
    for file in broken:
        yield error(
            f"{file.path}: {file.problems[0]}; engines ignore the whole file",
            f"nvc-py cdi validate {shlex.quote(file.path)}",
        )
    if kind not in _VOLATILE and not broken:
        yield ok(f"{place} outlives a reboot, and its specs are valid")


def _file_system(probe: Probe, path: str) -> str:
    """Of the mount below which a path is; "" where that cannot be read."""
    try:
        mounts = mountinfo.parse(probe.kernel("/proc/self/mountinfo").text())
    except FormatError:
        return ""
    above = [mount for mount in mounts if f"{path}/".startswith(f"{mount.point.rstrip('/')}/")]
    return max(above, key=lambda mount: len(mount.point)).kind if above else ""


def agent(seen: Seen) -> Iterator[Finding]:
    """Whether shares are held from outside."""
    try:
        seen.agent()
    except NvcError as problem:
        yield error(f"no agent answers: {problem}", "sudo systemctl enable --now nvc-agent")
    else:
        yield ok("the agent answers")


def variables(seen: Seen) -> Iterator[Finding]:
    """Whether a pod gets GPUs that nothing counted, by a variable."""
    place, content = _config(seen.probe)
    if content.get(_ENV_KEY, True) is False:
        yield ok("pods get no GPU by a variable")
        return
    yield error(
        "a pod gets every GPU with NVIDIA_VISIBLE_DEVICES=all, past scheduler and shares",
        f"sudoedit {shlex.quote(str(place))}  # {_ENV_KEY} = false",
    )


def guard(seen: Seen) -> Iterator[Finding]:
    """Whether a share may start without the guard."""
    # The toolkit's own file has no such section.
    place = seen.probe.system(CONFIGS[0])
    rules = table(place.toml(), "share")
    if rules.get("guard", "auto") == "require":
        yield ok("no share starts without the guard")
    else:
        yield warning(
            "a share may start without the guard, where the agent or nvc-runtime is missing",
            f'sudoedit {shlex.quote(str(place))}  # in section [share]: guard = "require"',
        )
    if rules.get("allow-guard-off") is True:
        yield error(
            "the annotation nvc.guard=off keeps a container out of the guard",
            f"sudoedit {shlex.quote(str(place))}  # in section [share]: allow-guard-off = false",
        )


def _config(probe: Probe) -> tuple[Place, dict[str, Any]]:
    """config.toml of hook and runtime, or where it would be. Raises BadFile."""
    place = next((place for place in map(probe.system, CONFIGS) if place.status(follow=False) is not None), None)
    return (place, place.toml()) if place is not None else (probe.system(CONFIGS[0]), {})
