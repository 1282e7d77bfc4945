"""Checks of Docker, Podman, containerd and CRI-O: valid files, and a runtime, hook or CDI for GPUs."""

from __future__ import annotations

import posixpath
import shlex
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from nvc.doctor.finding import Finding, error, note, ok, skipped, warning
from nvc.doctor.hooks import hook_files
from nvc.doctor.probe import BadFile, table, texts
from nvc.engines.hooksd import BUILT_IN

if TYPE_CHECKING:
    from nvc.doctor.probe import Place, Probe

DOCKER = "/etc/docker/daemon.json"
CONTAINERD = "/etc/containerd/config.toml"
CRIO, CRIO_DROP_INS = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
PODMAN = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
HOOK = "nvidia-container-runtime-hook"
#: The first Podman that does not copy an image's annotations to config.json.
OWN_ANNOTATIONS = (4, 5, 1)
#: File names of runtimes that add GPUs.
RUNTIMES = ("nvc-runtime", "nvidia-container-runtime")
#: containerd's table of the CRI plugin, by configuration version.
_CRI = {1: ("cri",), 2: ("io.containerd.grpc.v1.cri",)}
_CRI_3 = ("io.containerd.cri.v1.runtime",)
#: The first version in which CDI is on by default.
CDI_DEFAULT = 3
_IMPORTS_LIMIT = 64


def _configure(engine: str) -> str:
    restart = {"docker": "docker", "containerd": "containerd", "crio": "crio"}.get(engine)
    then = f"; sudo systemctl restart {restart}" if restart else ""
    return f"sudo nvc-py runtime configure --runtime={engine}{then}"


def is_ours(path: object) -> bool:
    """Whether a runtime's program is one that adds GPUs."""
    return isinstance(path, str) and posixpath.basename(path).startswith(RUNTIMES)


def docker_settings(probe: Probe) -> dict[str, Any]:
    """daemon.json, {} for a missing or broken one."""
    try:
        return table(probe.system(DOCKER).json())
    except BadFile:
        return {}


def hooked(probe: Probe) -> set[str]:
    """Engines that add GPUs by a hook."""
    found = set()
    if probe.program("dockerd") and probe.program(HOOK):
        found.add("docker")  # docker run --gpus
    if hook_files(probe):
        found |= {"podman", "crio"}
    return found


def docker(probe: Probe) -> Iterator[Finding]:
    program = probe.program("dockerd")
    place = probe.system(DOCKER)
    if not program and not place.exists():
        yield skipped("Docker is not installed")
        return
    settings = place.json()
    if settings is not None and not isinstance(settings, dict):
        yield error(f"{place} is not a JSON object: Docker does not start", f"sudoedit {shlex.quote(str(place))}")
        return
    runtimes = table(settings, "runtimes")
    ours = {name: table(runtimes, name).get("path") for name in runtimes if is_ours(table(runtimes, name).get("path"))}
    yield from _programs(probe, ours, str(place), "docker")
    default = table(settings).get("default-runtime")
    if isinstance(default, str) and default not in (*runtimes, "runc", "io.containerd.runc.v2"):
        yield error(f"{place}: default-runtime {default!r} is not one of its runtimes", _configure("docker"))
    cdi = table(settings, "features").get("cdi")
    ways = [f"--runtime {name}" for name in ours]
    ways += ["--gpus"] if probe.program(HOOK) else []
    ways += ["CDI"] if cdi is True else []
    if not ways:
        yield note("Docker has no runtime, hook or CDI for GPUs", _configure("docker"))
    else:
        yield ok(f"Docker adds GPUs by {', '.join(ways)}")


def podman_files(probe: Probe) -> list[Place]:
    """containers.conf, the machine's and root's, with the drop-ins, in the order Podman reads them."""
    found = []
    for path in PODMAN:
        directory = probe.system(f"{path}.d")
        found.append(probe.system(path))
        found += [directory.below(name) for name in directory.names() if name.endswith(".conf")]
    return found


def ask_version(path: str) -> str:
    """What ``path --version`` prints."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout


def _numbers(version: str) -> tuple[int, ...]:
    """Of a line such as "podman version 4.3.1"; () where there are none."""
    parts = version.split()[-1:] or [""]
    digits = [part for part in parts[0].partition("-")[0].split(".") if part.isascii() and part.isdecimal()]
    return tuple(map(int, digits[:3]))


def podman(probe: Probe) -> Iterator[Finding]:
    program = probe.program("podman")
    if not program:
        yield skipped("Podman is not installed")
        return
    found = _numbers(probe.ask_version(program))
    broken = bool(found) and found < OWN_ANNOTATIONS
    if broken:
        yield warning(
            f"Podman {'.'.join(map(str, found))} gives containers the annotations of their image, which ask for "
            "shares and devices, and have crun open files of the host as root",
            "use Podman 4.5.1 or newer, or images that you trust",
        )
    for place in podman_files(probe):
        path, settings = place.path, place.toml()
        engine = table(settings, "engine")
        runtimes = table(engine, "runtimes")
        for name, paths in runtimes.items():
            known = [entry for entry in texts(paths) if is_ours(entry)]
            if known and not any(probe.program(entry) for entry in known):
                broken = True
                yield error(f"{path}: runtime {name} is {known[0]}, which does not exist", _configure("podman"))
        for directory in texts(engine.get("hooks_dir")):
            # Podman passes over one that is missing (seen with 4.3.1); its own first one is often.
            if directory != BUILT_IN and not probe.system(directory).exists():
                broken = True
                yield warning(f"{path}: hooks_dir {directory} does not exist: no hook of it is run",
                              f"sudo mkdir -p {shlex.quote(directory)}")  # fmt: skip
    if not broken:
        yield ok("Podman supports CDI devices (--device nvidia.com/gpu=all) without configuration")


def containerd_files(probe: Probe) -> list[tuple[str, dict[str, Any]]]:
    """containerd's main file and those that it imports, in the order it reads them. Raises BadFile."""
    main = probe.system(CONTAINERD).toml()
    return [(CONTAINERD, main), *_imported(probe, main)]


def cri_plugin(content: dict[str, Any]) -> dict[str, Any]:
    """The CRI plugin's table of a file of containerd's."""
    version = content.get("version", 1)
    return table(content, "plugins", *_CRI.get(version if isinstance(version, int) else 1, _CRI_3))


def crio_files(probe: Probe) -> list[dict[str, Any]]:
    """CRI-O's main file and its drop-ins, in the order it reads them. Raises BadFile."""
    directory = probe.system(CRIO_DROP_INS)
    drop_ins = [directory.below(name) for name in directory.names() if name.endswith((".conf", ".toml"))]
    return [place.toml() for place in (probe.system(CRIO), *drop_ins)]


def containerd(probe: Probe) -> Iterator[Finding]:
    place = probe.system(CONTAINERD)
    if not probe.program("containerd") and not place.exists():
        yield skipped("containerd is not installed")
        return
    files = containerd_files(probe)
    main = files[0][1]
    if "cri" in texts(main.get("disabled_plugins")):
        yield note(f"{place} turns the CRI plugin off: Kubernetes cannot use this containerd")
    ours: dict[str, Any] = {}
    wrong: list[str] = []
    cdi = False
    holders: dict[str, list[str]] = {}
    for path, content in files:
        version = content.get("version", 1)
        if not isinstance(version, int):
            yield error(f"{path}: version is {version!r}, not a number: containerd does not start", f"sudoedit {path}")
            continue
        plugin = cri_plugin(content)
        if plugin:
            holders.setdefault(f"{version}", []).append(path)
        # The default since containerd 2.0, which introduced version 3.
        cdi = plugin.get("enable_cdi", cdi or version >= CDI_DEFAULT) is True
        for name, runtime in table(plugin, "containerd", "runtimes").items():
            binary = table(runtime, "options").get("BinaryName")
            if is_ours(binary):
                ours[name] = binary
        default = table(plugin, "containerd").get("default_runtime_name")
        if isinstance(default, str) and default not in table(plugin, "containerd", "runtimes") and default != "runc":
            wrong.append(f"{path}: default_runtime_name {default!r} is not a runtime of that file")
    yield from _programs(probe, ours, CONTAINERD, "containerd")
    for text in wrong:
        yield warning(text, _configure("containerd"), "containerd before 2.1 does not merge the tables of two files")
    for version_text, paths in holders.items():
        if len(paths) > 1 and int(version_text) < 3:
            yield note(
                f"{' and '.join(paths)} both have the CRI plugin's table: containerd < 2.1 uses only the last",
                "containerd config dump  # shows the effective configuration",
            )
    ways = [f"runtime {name}" for name in ours] + (["CDI"] if cdi else [])
    if not ways:
        yield note("containerd has no runtime or CDI for GPUs", _configure("containerd"))
    else:
        yield ok(f"containerd adds GPUs by {', '.join(ways)}")


def crio(probe: Probe) -> Iterator[Finding]:
    directory = probe.system(CRIO_DROP_INS)
    if not probe.program("crio") and not probe.system(CRIO).exists() and not directory.exists():
        yield skipped("CRI-O is not installed")
        return
    ours: dict[str, Any] = {}
    for content in crio_files(probe):
        for name, runtime in table(content, "crio", "runtime", "runtimes").items():
            path = table(runtime).get("runtime_path")
            if is_ours(path):
                ours[name] = path
    yield from _programs(probe, ours, CRIO_DROP_INS, "crio")
    yield ok("CRI-O supports CDI devices without configuration" + "".join(f", and has runtime {name}" for name in ours))


def installed(probe: Probe) -> Iterator[Finding]:
    """The programs of nvc-py, by the names that engines call."""
    missing = [name for name in ("nvc-hook", "nvc-cdi-hook", "nvc-runtime") if not probe.program(name)]
    if probe.host.simulated:
        return
    if missing:
        yield note(f"not installed in {':'.join(probe.search[:2])} ...: {', '.join(missing)}", "sudo make install")
    else:
        yield ok("nvc-hook, nvc-cdi-hook and nvc-runtime are installed")


def _programs(probe: Probe, ours: dict[str, Any], where: str, engine: str) -> Iterator[Finding]:
    for name, path in ours.items():
        if not probe.program(path):
            yield error(f"{where}: runtime {name} is {path}, which does not exist", _configure(engine))


def _imported(probe: Probe, main: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The files that ``imports`` names, in the order containerd reads them. Raises BadFile."""
    found: list[tuple[str, dict[str, Any]]] = []
    for pattern in texts(main.get("imports")):
        directory, _, name = pattern.rpartition("/")
        directory = directory or posixpath.dirname(CONTAINERD)
        place: Place = probe.system(directory)
        for entry in place.names():
            if fnmatch(entry, name) and len(found) < _IMPORTS_LIMIT:
                found.append((f"{directory}/{entry}", place.below(entry).toml()))
    return found
