"""Put an installation's modules into the one file that ``nvc.base.boot`` reads, and that module into the file that
launchers read: ``PYTHON tools/bundle.py TARGET LIBRARY``.

TARGET: where the packages are now; LIBRARY: where they will be, which tracebacks name. Run it with the interpreter that
the commands start, whose compiled code it is.
"""

from __future__ import annotations
import __future__

import ast
import importlib.util
import marshal
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("rpc", "nvc", "hook")
#: Imported by people's commands only, or before the bundle is read.
LEFT_OUT = ("nvc.base.boot", "nvc.sim.", "nvc.cdi.", "nvc.cli.help", "nvc.cli.sim", "nvc.cli.cdi", "nvc.cli.ctk")
#: Of Python's library: five lines around ``_struct``, which is built in.
STANDARD = ("struct",)
#: click shows their docstrings as the help of commands.
SHOWN = ("nvc.cli", "nvc.doctor", "hook.cdi")
NAME, FORMAT = "nvc/modules.bundle", 1
BOOT = "nvc/boot.code"


def main(target: Path, library: str) -> None:
    """Write the bundle of the packages below ``target``, and the code of nvc.base.boot."""
    index: dict[str, tuple[int, int, bool]] = {}
    parts: list[bytes] = []
    place = 0
    for name, path, filename in modules(target, library):
        code = marshal.dumps(compiled(path.read_bytes(), filename, docstrings=name.startswith(SHOWN)))
        index[name] = (place, len(code), path.name == "__init__.py")
        parts.append(code)
        place += len(code)
    table = marshal.dumps((FORMAT, importlib.util.MAGIC_NUMBER, index))
    replace(target / NAME, len(table).to_bytes(8, "little"), table, *parts)
    boot = compiled((target / "nvc/base/boot.py").read_bytes(), f"{library}/nvc/base/boot.py")
    replace(target / BOOT, importlib.util.MAGIC_NUMBER, marshal.dumps(boot))


def modules(target: Path, library: str) -> Iterator[tuple[str, Path, str]]:
    """Name, file and the name of the file in tracebacks."""
    for package in PACKAGES:
        for path in sorted((target / package).rglob("*.py")):
            relative = path.relative_to(target)
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            if not name.startswith(LEFT_OUT):
                yield name, path, f"{library}/{relative}"
    for name in STANDARD:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None and found.origin.endswith(".py"):
            yield name, Path(found.origin), found.origin


def replace(path: Path, *parts: bytes) -> None:
    """Write a file as a whole."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(b"".join(parts))
    os.replace(temporary, path)


def compiled(source: bytes, filename: str, *, docstrings: bool = False) -> object:
    """A module's code, without what costs time at every start.

    ``from __future__`` is carried out here: at run time it would import a module from a file. Annotations of functions
    and what is for type checkers are left out; ``assert`` is not, and docstrings are not: click shows them as the help
    of a command. With -X no_debug_ranges, tracebacks name the line and not the column.
    """
    tree = ast.parse(source, filename)
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    tree = _Lighter().visit(tree)
    if not docstrings:
        _without_docstrings(tree)
    return compile(tree, filename, "exec", flags=flags, dont_inherit=True)


def _without_docstrings(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            node.body[:1] = [] if len(node.body) > 1 else [ast.copy_location(ast.Pass(), node.body[0])]


class _Lighter(ast.NodeTransformer):
    """Leaves out what the running program does not look at. Annotations of classes stay: Records are made of them."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
