"""Starts an installed command, with all modules in one file instead of one file each.

Finding, opening and reading fifty small files takes a fifth of a container's start. ``tools/bundle.py`` puts the
compiled modules into ``modules.bundle``; ``start`` inserts a finder for them before Python's own. This module itself is
in ``boot.code`` (Python's magic number, its compiled code), which the launcher (``tools/launcher``) executes: importing
it would be 55 system calls. A bundle or boot.code that is missing, truncated or of another Python is no error: the same
modules are beside it as files.

Layout: eight bytes with the size of the index, the index (marshal: format, Python's magic number for compiled
files, {module: (place, size, is it a package)}), the modules' compiled code (marshal), one after another. It is as
much trusted as the files beside it, which only root can write.
"""

# No ``from __future__``: this module is not in the bundle, and at run time that is an import of another file.
import gc
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
    from importlib.util import MAGIC_NUMBER
    from types import CodeType, ModuleType
    from typing import NoReturn
else:
    # importlib's own parts, which the interpreter started with; the package around them is a dozen modules.
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import EXTENSION_SUFFIXES, MAGIC_NUMBER, ExtensionFileLoader

FORMAT = 1
NAME = "modules.bundle"
#: Compiled code that is not Python's: module -> its file, below the directory of the packages.
EXTENSIONS = {"nvc.linux._raw": "nvc/linux/_raw.abi3.so"}
#: The interpreter's own extensions that a start needs. Python looks for them by listing each directory of its path.
INTERPRETERS = ("_json", "resource")
#: Bytes before the index: its size.
_HEAD = 8
#: Enough for the size and the index of all modules; a longer index takes a second read.
_FIRST_READ = 16 << 10


class Finder:
    """Finds and loads the modules of a bundle.

    library: the directory that holds the packages. Raises OSError, and ValueError, EOFError or TypeError (marshal) for
    a bundle that cannot be used.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        # Kept open: a module's code is read when it is imported, also after the root or the namespace has changed.
        self._file = os.open(f"{library}/nvc/{NAME}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._file < 3:
                raise ValueError("a standard stream was closed: writes to it must not reach this file")
            start = os.pread(self._file, _FIRST_READ, 0)
            self._codes = _HEAD + int.from_bytes(start[:_HEAD], "little")
            if self._codes > len(start):
                start = os.pread(self._file, self._codes, 0)
            form, magic, self._index = marshal.loads(start[_HEAD : self._codes])
            if form != FORMAT or magic != MAGIC_NUMBER:
                raise ValueError("a bundle of another Python")
        except BaseException:
            os.close(self._file)
            raise

    def fileno(self) -> int:
        """The bundle's descriptor, which must stay open when a process closes what it inherited."""
        return self._file

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        entry = self._index.get(name)
        if entry is None:
            file = f"{self._library}/{EXTENSIONS[name]}" if name in EXTENSIONS else _interpreters(name)
            return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file) if file else None
        where = f"{self._library}/{name.replace('.', '/')}"
        origin = f"{where}/__init__.py" if entry[2] else f"{where}.py"
        # Typeshed's Loader has the methods of Python 2's protocol too.
        spec = ModuleSpec(name, self, origin=origin, is_package=entry[2])  # type: ignore[arg-type]
        if entry[2]:
            spec.submodule_search_locations = [where]
        spec.has_location = True
        # No .pyc: else importlib computes its name for each module, a fifteenth of what an import takes.
        spec.cached = ""
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """See importlib.abc.Loader: None makes an ordinary module."""

    def exec_module(self, module: "ModuleType") -> None:
        """See importlib.abc.Loader."""
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102 -- an import executes the module

    def get_code(self, name: str) -> "CodeType":
        """A module's compiled code."""
        place, size, _ = self._index[name]
        code: CodeType = marshal.loads(os.pread(self._file, size, self._codes + place))
        return code


def _interpreters(name: str) -> str:
    """The file of one of INTERPRETERS; "" where it is built in, or elsewhere: then Python finds it."""
    if name in INTERPRETERS and name not in sys.builtin_module_names:
        for directory in sys.path:
            file = f"{directory}/{name}{EXTENSION_SUFFIXES[0]}"
            if directory.endswith("/lib-dynload") and os.path.exists(file):
                return file
    return ""


def start(library: str, module: str) -> "NoReturn":
    """Run ``run`` of ``module``, which ends the process. library: the directory of our packages."""
    # The process is too short for garbage collection to pay; owners of descriptors close them explicitly.
    gc.disable()
    try:
        sys.meta_path.insert(0, Finder(library))
    except (OSError, ValueError, EOFError, TypeError):
        pass
    __import__(module)
    raise SystemExit(sys.modules[module].run())
