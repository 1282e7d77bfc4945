"""The loader's configuration of a container: which directories it names, and the files that add ours.

A folder of driver libraries is named to the loader in a file of its own, so that an ``ldconfig`` that is run in the
container later (a package is installed) still knows it. The container's own order is kept: only folders that it does
not have are added, and the system directories of its distribution are named last, because the host's ldconfig, which
makes the cache, has those of another distribution built in.
"""

from __future__ import annotations

import errno

from nvc.base.budgets import ENTRIES
from nvc.cdi.below import Below
from nvc.linux.const import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nvc.linux.root import Root

MAIN = "/etc/ld.so.conf"
DIRECTORY = "/etc/ld.so.conf.d"
#: Compat libraries come before the driver's, those before everything else, the system's directories last.
COMPAT, FOLDERS, SYSTEM = (f"{DIRECTORY}/{name}.conf" for name in ("00-compat-nvc", "00-nvcr-nvc", "zz-nvcr-nvc"))
_INCLUDE = f"include {DIRECTORY}/*.conf\n"
#: Of an image's files nothing beyond this is read: what is not understood is only named twice.
_FILES_LIMIT, _BYTES_LIMIT, _DEPTH_LIMIT = 256, 64 << 10, 8
_MUSL_DEFAULT = ("/lib", "/usr/local/lib", "/usr/lib")
#: uname's machine -> Debian's name for its libraries.
_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}


def add_folders(below: Below, folders: Iterable[str]) -> tuple[str, ...]:
    """Make the loader search ``folders``. Returns the arguments of ldconfig: folders that its configuration lacks.

    Raises MountError.
    """
    root = below.root
    wanted = tuple(dict.fromkeys(folder.rstrip("/") for folder in folders if folder.startswith("/")))
    if not _present(root, MAIN):
        below.write(MAIN, _INCLUDE)
    # Without what a former start of this root left: it is replaced in one step, as a start beside this one reads it.
    listed = set(directories(root, ours=False))
    system = system_directories(root)
    ours = [folder for folder in wanted if folder not in listed and folder not in system]
    for path, lines in ((FOLDERS, ours), (SYSTEM, [one for one in system if one not in listed])):
        if lines:
            below.write(path, "".join(f"{line}\n" for line in lines))
        else:
            below.remove(path)
    _tell_musl(below, wanted)
    after = set(directories(root))
    compat = [line for line in _lines(root, COMPAT) if line.startswith("/")]
    return tuple(directory for directory in (*compat, *ours) if directory not in after)


def _tell_musl(below: Below, folders: tuple[str, ...]) -> None:
    """Alpine's loader has no cache: it searches what its path file says, or three directories when there is none."""
    if not _present(below.root, "/etc/alpine-release"):
        return
    path = f"/etc/ld-musl-{MACHINE}.path"
    # musl, ldso/dynlink.c: separated by newlines or colons.
    known = [word for line in _lines(below.root, path) for word in line.split(":")] or list(_MUSL_DEFAULT)
    missing = [folder for folder in folders if folder not in known]
    if missing:
        below.write(path, "".join(f"{word}\n" for word in (*known, *missing)))


def set_compat(below: Below, directory: str) -> None:
    """Make the loader prefer ``directory``; "": no longer. Raises MountError."""
    if directory:
        below.write(COMPAT, f"{directory}\n")
    else:
        below.remove(COMPAT)


def system_directories(root: Root) -> tuple[str, ...]:
    """What the loader of the container's distribution searches without any configuration."""
    if _present(root, "/etc/debian_version"):
        name = _MULTIARCH.get(MACHINE)
        multiarch = (f"/lib/{name}", f"/usr/lib/{name}") if name else ()
        return (*multiarch, "/lib", "/usr/lib")
    return ("/lib", "/usr/lib", "/lib64", "/usr/lib64")


def directories(root: Root, *, ours: bool = True) -> list[str]:
    """The directories that the container's ld.so.conf names, in its order, included files too.

    ours: also those that ``add_folders`` named.
    """
    return list(dict.fromkeys(_parse(root, MAIN, set(), 0, _Lists(root, () if ours else (FOLDERS, SYSTEM)))))


def _parse(root: Root, path: str, seen: set[str], depth: int, lists: _Lists) -> Iterator[str]:
    if path in seen or depth > _DEPTH_LIMIT or len(seen) >= _FILES_LIMIT:
        return
    seen.add(path)
    for line in _lines(root, path):
        words = line.replace("\t", " ").split(" ")
        if words[0] == "include":
            for pattern in words[1:]:
                whole = pattern if pattern.startswith("/") else f"{_parent(path)}/{pattern}"
                for file in lists.matching(whole):
                    yield from _parse(root, file, seen, depth + 1, lists)
        elif words[0] != "hwcap":
            for word in line.replace(":", " ").replace(",", " ").split():
                yield word.partition("=")[0].rstrip("/") or "/"


def _lines(root: Root, path: str) -> list[str]:
    try:
        text = root.read(path, _BYTES_LIMIT).decode("utf-8", "surrogateescape")
    except OSError:
        return []
    lines = (line.partition("#")[0].strip() for line in text.split("\n"))
    return [line for line in lines if line]


class _Lists:
    """The files that patterns name; wildcards are understood in the last component, where every loader has them.

    Names of directories are compared ENTRIES times in all: an image says how many patterns and how many names there
    are, and a start waits.
    """

    def __init__(self, root: Root, without: tuple[str, ...]) -> None:
        self._root = root
        self._without = [_name(path) for path in without]
        self._left = ENTRIES

    def matching(self, pattern: str) -> list[str]:
        directory, name = _parent(pattern), _name(pattern)
        if "*" not in name and "?" not in name:
            return [pattern]
        # A directory that is not there costs as well.
        self._left -= 1
        if self._left <= 0:
            return []
        try:
            names = self._root.list_directory(directory, self._left)
        except OSError as error:
            if error.errno == errno.EFBIG:
                self._left = 0
            return []
        self._left -= len(names)
        names = [found for found in names if not found.startswith(".") and found not in self._without]
        return [f"{directory}/{found}" for found in names if _matches(name, found)]


def _matches(pattern: str, name: str) -> bool:
    """Shell wildcards * and ?. Not ``fnmatch``, which imports ``re``."""
    star, mark, at, index = -1, 0, 0, 0
    while index < len(name):
        if at < len(pattern) and pattern[at] in ("?", name[index]) and pattern[at] != "*":
            at, index = at + 1, index + 1
        elif at < len(pattern) and pattern[at] == "*":
            star, mark, at = at, index, at + 1
        elif star >= 0:
            mark += 1
            at, index = star + 1, mark
        else:
            return False
    return not pattern[at:].strip("*")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _present(root: Root, path: str) -> bool:
    try:
        root.resolve(path, follow=False).close()
    except OSError:
        return False
    return True
