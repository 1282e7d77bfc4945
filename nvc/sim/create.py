"""Makes a simulated machine in a directory: all of it, or nothing."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable

from nvc.base.errors import DetectionError, InputError, reason
from nvc.linux import owned
from nvc.linux.root import Root
from nvc.model import Host
from nvc.sim import MACHINE_FILE, elfwriter, graphics, host, layouts, platforms, templates
from nvc.sim.description import MachineDescription, checked, load
from nvc.sim.files import TLS_NOTE, InstalledLibrary, binaries, libraries
from nvc.sim.layouts import Architecture, Layout
from nvc.sim.loadercache import find_ldconfig, make_cache
from nvc.sim.machine_text import machine_text
from nvc.sim.nodes import make_nodes
from nvc.sim.proctree import directories, texts

_PARENT = "the parent directory must exist and be writable"
Warn = Callable[[str], None]


def create(
    directory: str,
    machine: str | MachineDescription,
    *,
    force: bool = False,
    warn: Warn = lambda text: None,
) -> Host:
    """Make ``machine`` (a name, a .json file, or a description) in ``directory``.

    The directory may be missing or empty; with ``force`` it may also hold a simulated machine, which is replaced.
    warn: gets one line for everything that was left out.
    Raises InputError for an unknown machine or an unsuitable directory, DetectionError without ldconfig or
    the compiled templates. On failure the directory is unchanged.
    """
    description = load(machine) if isinstance(machine, str) else checked(machine)
    directory = _resolved(directory)
    old = _check_target(directory, force)
    parent = os.path.dirname(directory)
    try:
        building = tempfile.mkdtemp(prefix=f".{os.path.basename(directory)}.", dir=parent)
    except OSError as error:
        raise InputError(f"{parent}: {reason(error)}", hint=_PARENT) from error
    # The driver service reads the machine without rights: every user needs read permission, whatever the umask is.
    umask = os.umask(0o022)
    try:
        _build(description, building, warn)
        os.chmod(building, 0o755)
        _put_in_place(building, directory, old)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise DetectionError(f"cannot create {directory}: {where}{reason(error)}") from error
    finally:
        os.umask(umask)
        shutil.rmtree(building, ignore_errors=True)
    return host(directory)


def _resolved(directory: str) -> str:
    """Without links. In /tmp another user may have made one of that name, to where the machine must not be made."""
    path = os.path.join(os.getcwd(), directory).rstrip("/")
    parent, name = os.path.split(path)
    try:
        with Root.open("/") as root:
            if name not in ("", ".", "..") and not os.path.islink(path):
                return os.path.join(owned.real_path(root.fd, parent), name)
            return owned.real_path(root.fd, path)
    except owned.Untrusted as error:
        raise InputError(f"{directory}: {error.text}", hint="name a directory that is yours") from error
    except OSError as error:
        raise InputError(f"{parent}: {reason(error)}", hint=_PARENT) from error


def _check_target(directory: str, force: bool) -> bool:
    """Whether ``directory`` holds a machine to replace. Raises InputError when it must not be touched."""
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"{directory}: {reason(error)}") from error
    if not entries:
        return False
    if not os.path.isfile(os.path.join(directory, MACHINE_FILE)):
        raise InputError(f"{directory} is not empty and not a simulated machine", hint="name a new directory")
    if not force:
        raise InputError(f"{directory} already holds a simulated machine", hint="--force replaces it")
    return True


def _put_in_place(building: str, directory: str, old: bool) -> None:
    if not old:
        os.rename(building, directory)  # the target is missing or an empty directory
        return
    aside = f"{building}.old"
    os.rename(directory, aside)
    try:
        os.rename(building, directory)
    except OSError:
        os.rename(aside, directory)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _build(machine: MachineDescription, root: str, warn: Warn) -> None:
    layout, architecture = layouts.layout(machine.layout, platform.machine())
    _make_skeleton(root)
    for path in directories(machine):
        os.makedirs(root + path, exist_ok=True)
    os.chmod(f"{root}/tmp", 0o1777)
    special = platforms.texts(machine, layout.libraries) if machine.platform else {}
    marker, marker_text = layout.marker
    for path, text in {marker: marker_text, **texts(machine), **special}.items():
        _write(root + path, text.encode())
    problem = make_nodes(machine, root)
    if problem:
        warn(f"no device nodes were made ({problem}); run as root to have them")
    graphics.finish_drm(machine, root, nodes=not problem)
    text = machine_text(machine, nodes=not problem)
    _write(os.path.join(root, MACHINE_FILE), text.encode())
    if machine.platform:
        platforms.install(machine, root, layout.libraries, architecture.target, text, _write)
    driver = root + layout.prefix
    os.makedirs(driver, exist_ok=True)
    _install_libraries(machine, driver, layout, architecture, text)
    graphics.install(machine, driver, layout, architecture, _write)
    for name in binaries(machine):
        _write(
            f"{driver}{layout.binaries}/{name}",
            templates.read(templates.SMI if name == templates.SMI else templates.TOOL),
            0o755,
        )
    for name in machine.firmware:
        _write(f"{driver}/usr/lib/firmware/nvidia/{machine.driver_version}/{name}", b"SIMULATED GSP firmware\n")
    for path in machine.sockets:
        _make_socket(root + path)
    if machine.mps:
        os.mkdir(f"{root}/tmp/nvidia-mps", 0o777)
        os.chmod(f"{root}/tmp/nvidia-mps", 0o777)
        _make_socket(f"{root}/tmp/nvidia-mps/control")
    make_cache(driver, (layout.libraries, layout.libraries32), ldconfig=find_ldconfig())
    if not layout.cache:  # ldconfig made the links of the libraries
        for name in ("ld.so.cache", "ld.so.conf", "ld.so.conf.d/multiarch.conf"):
            os.unlink(f"{driver}/etc/{name}")
    for directory, links in layout.linked:
        _link_all(root, directory, links)
    for library, damage in machine.damage.items():
        _damage(machine, driver, layout, architecture, library, damage)


def _link_all(root: str, directory: str, links: str) -> None:
    """A link at the same place below ``links`` to every file below ``directory``."""
    for place, _, names in os.walk(root + directory):
        below = place.removeprefix(root + directory)
        os.makedirs(f"{root}{links}{below}", exist_ok=True)
        for name in names:
            os.symlink(f"{directory}{below}/{name}", f"{root}{links}{below}/{name}")


def _make_skeleton(root: str) -> None:
    """The links of a merged-/usr Debian system."""
    for path in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "run", "var", "etc"):
        os.makedirs(os.path.join(root, path))
    for name in ("bin", "sbin", "lib", "lib64"):
        os.symlink(f"usr/{name}", os.path.join(root, name))
    os.symlink("/run", os.path.join(root, "var/run"))


def _write(path: str, data: bytes, mode: int = 0o644) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)


def _make_socket(path: str) -> None:
    """A socket's inode, without a listener. mknod instead of bind: no length limit, and no privilege either."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mknod(path, stat.S_IFSOCK | 0o666)
    os.chmod(path, 0o666)


def _library_bytes(library: InstalledLibrary, target: elfwriter.Target, text: str) -> bytes:
    if library.row.kind == "nvml" and target.bits == 64:
        return templates.bake(templates.read(templates.NVML), text)
    if library.row.kind == "cuda" and target.bits == 64:
        return templates.bake(templates.read(templates.CUDA), text)
    kernel = TLS_NOTE if library.row.note else None
    return elfwriter.shared_object(target, library.soname, needed=library.needs, kernel=kernel)


def _install_libraries(
    machine: MachineDescription, root: str, layout: Layout, architecture: Architecture, text: str
) -> None:
    places = [(layout.libraries, architecture.target)]
    if machine.compat32:
        places.append((layout.libraries32, architecture.target32))
    for directory, target in places:
        for library in libraries(machine, bits=target.bits):
            place = f"{root}{directory}/{library.directory}".rstrip("/")
            _write(f"{place}/{library.file}", _library_bytes(library, target, text))
            if library.directory:  # in no loader cache, so that ldconfig makes no link
                os.symlink(library.file, f"{place}/{library.soname}")


def _damage(
    machine: MachineDescription, root: str, layout: Layout, architecture: Architecture, name: str, damage: str
) -> None:
    """Damage a library without updating the loader cache (see description.DAMAGES)."""
    library = next((item for item in libraries(machine, bits=64) if item.row.name == name), None)
    if library is None:
        raise InputError(f"machine {machine.name} damages {name}, which it does not have")
    path = f"{root}{layout.libraries}/{library.file}"
    whole = _library_bytes(library, architecture.target, "")
    os.unlink(path)
    if damage == "foreign":
        _write(path, elfwriter.shared_object(architecture.foreign, library.soname))
    elif damage == "truncated":
        _write(path, whole[:20])
    elif damage == "garbage":
        _write(path, b"This is not a library.\n" * 8)
