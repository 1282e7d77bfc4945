"""Root file systems for containers, made from the files of this machine, without a network.

busybox for the shell, and the host's glibc, loader and ldconfig, so that a container has a loader cache of its own.
``/etc/debian_version`` and the loader's directories say whether the machine is of Debian's kind: libraries
then belong into the multiarch directory (libnvidia-container.md 2.4).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support import runtimes

#: What a small C program, dlopen and NVML need of glibc. The last ones have been part of libc.so.6 since 2.34, but
#: programs built before that still name them.
LIBRARIES = ("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1")
DIRECTORIES = (
    "bin",
    "sbin",
    "etc",
    "dev",
    "proc",
    "sys",
    "tmp",
    "root",
    "usr/bin",
    "usr/sbin",
    "usr/lib",
    "run",
    "var",
)
PROBE_SOURCE = Path(__file__).with_name("probe.c")


def multiarch() -> str:
    """The machine's library triplet: "x86_64-linux-gnu", or "aarch64-linux-gnu"."""
    return sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"


def host_library(name: str) -> Path:
    """The host's file of a SONAME, links resolved. Raises FileNotFoundError."""
    for directory in (f"/lib/{multiarch()}", f"/usr/lib/{multiarch()}", "/lib64", "/usr/lib64", "/lib", "/usr/lib"):
        path = Path(directory, name)
        if path.exists():
            return path.resolve()
    raise FileNotFoundError(f"the host has no {name}")


def loader_path() -> str:
    """The dynamic loader's path, as ELF files of this machine name it (System V ABI supplements)."""
    return "/lib64/ld-linux-x86-64.so.2" if os.uname().machine == "x86_64" else "/lib/ld-linux-aarch64.so.1"


def find_busybox() -> Path:
    """A statically linked busybox: from the folder in NVC_CARRY, or from PATH. Raises FileNotFoundError."""
    found = runtimes.find("busybox")
    if found:
        return Path(found)
    raise FileNotFoundError(
        "no busybox: install busybox-static, or name a folder that tools/carry.py made in NVC_CARRY"
    )


def build_probe(target: Path) -> Path:
    """Compile probe.c, dynamically linked. Raises CalledProcessError with the compiler's words."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-o", str(target), str(PROBE_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return target


def build(target: Path) -> Path:
    """Make a root file system (about 8 MB) in the new directory ``target`` and return it."""
    for name in DIRECTORIES:
        (target / name).mkdir(parents=True, exist_ok=True)
    (target / "tmp").chmod(0o1777)
    _add_busybox(target)
    _add_glibc(target)
    (target / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (target / "etc/group").write_text("root:x:0:\n")
    if os.path.exists("/etc/debian_version"):
        shutil.copy("/etc/debian_version", target / "etc/debian_version")
    build_probe(target / "usr/bin/probe")
    subprocess.run([_host_ldconfig(), "-r", str(target)], check=True)
    return target


def _add_busybox(target: Path) -> None:
    busybox = target / "bin/busybox"
    shutil.copy(find_busybox(), busybox)
    busybox.chmod(0o755)
    applets = subprocess.run([str(busybox), "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in applets:
        if applet not in ("busybox", "ldconfig", "nvidia-smi"):  # busybox lists itself: a link to itself would loop
            (target / "bin" / applet).symlink_to("busybox")


def _add_glibc(target: Path) -> None:
    libraries = target / "usr/lib" / multiarch()
    libraries.mkdir(parents=True)
    # A merged /usr, as every distribution of today has it.
    (target / "lib").symlink_to("usr/lib")
    (target / "lib64").symlink_to("usr/lib64")
    (target / "usr/lib64").mkdir()
    for name in LIBRARIES:
        shutil.copy(host_library(name), libraries / name)
    loader = target / "usr" / loader_path().lstrip("/")
    loader.parent.mkdir(exist_ok=True)
    shutil.copy(Path(loader_path()).resolve(), loader)
    shutil.copy(_host_ldconfig(), target / "sbin/ldconfig")
    (target / "sbin/ldconfig").chmod(0o755)
    gnutrue = target / "usr/bin/gnutrue"
    shutil.copy(shutil.which("true") or "/bin/true", gnutrue)
    (target / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    (target / "etc/ld.so.conf.d").mkdir()
    directories = f"/usr/local/lib\n/lib/{multiarch()}\n/usr/lib/{multiarch()}\n"
    (target / f"etc/ld.so.conf.d/{multiarch()}.conf").write_text(directories)
    (target / "var/cache/ldconfig").mkdir(parents=True)


def _host_ldconfig() -> str:
    """Ubuntu's /sbin/ldconfig is a shell script around ldconfig.real."""
    return next(path for path in ("/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/bin/ldconfig") if os.path.exists(path))


def add_program(tree: Path, program: Path, target: str) -> None:
    """Copy a host program and the libraries that ldd names for it into a root file system, and renew its cache."""
    shutil.copy(program, tree / target.lstrip("/"))
    names = subprocess.run(["ldd", str(program)], check=True, capture_output=True, text=True).stdout
    for source in re.findall(r"=> (/\S+)", names):
        place = tree / "usr/lib" / multiarch() / Path(source).name
        if not place.exists():
            shutil.copy(Path(source).resolve(), place)
    subprocess.run([_host_ldconfig(), "-r", str(tree)], check=True)


def copy(base: Path, target: Path) -> Path:
    """A copy of its own of a root file system: shares blocks where the file system can, never inodes."""
    subprocess.run(["cp", "-a", "--reflink=auto", f"{base}/.", str(target)], check=True)
    return target


def shift_owner(tree: Path, offset: int) -> None:
    """Give every file of a tree to uid and gid + ``offset``, as a remapped container needs it."""
    for path in (tree, *_walk(tree)):
        status = path.lstat()
        os.lchown(path, status.st_uid + offset, status.st_gid + offset)
        if not path.is_symlink():
            path.chmod(stat.S_IMODE(status.st_mode))  # chown clears set-id bits


def fingerprint(tree: Path, *, ignore: Sequence[str] = ()) -> dict[str, str]:
    """Relative path -> kind, mode, owner, link text or content hash: equal exactly when nothing was touched."""
    result = {}
    for path in (tree, *_walk(tree)):
        name = str(path.relative_to(tree))
        if not name.startswith(tuple(ignore)):
            result[name] = _describe(path)
    return result


def _describe(path: Path) -> str:
    status = path.lstat()
    words = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
    if stat.S_ISLNK(status.st_mode):
        return f"{words} -> {os.readlink(path)}"
    if stat.S_ISREG(status.st_mode):
        return f"{words} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return f"{words} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return words


def _walk(tree: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(tree):
        for name in sorted(names + files):
            yield Path(directory, name)
