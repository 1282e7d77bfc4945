"""nvc/cli/reference.py has every variable that the programs read and every exit code that they return."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nvc.agent import accounting
from nvc.base import config_file
from nvc.cdi import files as cdi_files
from nvc.cli import reference
from nvc.driver import places
from nvc.engines.table import ENGINES
from nvc.share import protocol, store
from tests.support import commandtree

ROOT = Path(__file__).parents[2]
#: Modules in which ``environment`` is a container's.
CONTAINERS = ("nvc.share.dialects", "nvc.cdi.memory_limits", "hook.environment")
#: The process's own, by the names that functions give it.
OWN = {"os.environ", "environ", "environment", "request.environment"}
READERS = {"get", "pop"}


def reads() -> Iterator[tuple[str, str]]:
    """(module, variable) of every look into an environment."""
    for package in ("nvc", "hook", "rpc"):
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if module in CONTAINERS:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                    if node.func.attr in READERS and ast.unparse(node.func.value) in OWN:
                        yield from ((module, name) for name in names(module, node.args[0]))
                elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
                    found = names(module, node.slice) if isinstance(node.ctx, ast.Load) else []
                    yield from ((module, name) for name in found)


def names(module: str, node: ast.expr) -> list[str]:
    """The variable that an expression names; [] for a loop's variable, whose values LOOPS has."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    text = ast.unparse(node)
    if text.startswith("completion_variable(") or text == "variable":
        return ["_NVC_PY_COMPLETE"]
    found = getattr(importlib.import_module(module), text, None) if text.isidentifier() else None
    return [found] if isinstance(found, str) else LOOPS.get((module, text), [f"{module}: {text}"])


#: Looks in a loop: module and expression -> the variables.
LOOPS: dict[tuple[str, str], list[str]] = {
    ("nvc.prefork.request", "name"): ["LC_ALL", "LC_CTYPE", "LANG"],
    ("nvc.driver.inventory", "name"): ["PATH", "CUDA_MPS_PIPE_DIRECTORY"],
    ("nvc.driver.binaries", "row.variable"): ["CUDA_MPS_PIPE_DIRECTORY"],
    ("hook.cdi", "name"): ["NVIDIA_CTK_DEBUG", "NVIDIA_CDI_DEBUG"],
    ("nvc.cli.ctk.parse", "name"): [],  # variables of nvidia-ctk's options: their rows have them
}


def test_every_variable_that_is_read_is_written_down() -> None:
    found = {name for _, name in reads()}
    for path in (ROOT / "native/client").glob("*.c"):
        found |= set(re.findall(r'getenv \("(\w+)"\)', path.read_text()))
    assert {"NVC_SIM", "NVC_DEBUG_FILE", "KUBECONFIG", "NOTIFY_SOCKET"} <= found, "the search finds what is there"

    assert found - {row[0] for row in reference.ENVIRONMENT} == set()


def test_no_variable_is_written_down_that_nothing_reads() -> None:
    text = "".join(path.read_text() for package in ("nvc", "hook") for path in (ROOT / package).rglob("*.py")
                   if path.name != "reference.py")  # fmt: skip
    read_by_libraries = {"_NVC_PY_COMPLETE", "TERM", "LISTEN_FDNAMES"}

    assert [
        row[0] for row in reference.ENVIRONMENT if row[0] not in read_by_libraries and f'"{row[0]}"' not in text
    ] == []


def test_files_are_where_the_code_has_them() -> None:
    known = {
        config_file.CONFIG,
        "/etc/nvidia-container-runtime/config.toml",
        "/etc/ld.so.cache",
        places.CACHE,
        store.DIRECTORY,
        protocol.CONTROL.rpartition("/")[0],
        protocol.CONTROL,
        accounting.path(protocol.CONTROL.rpartition("/")[0]),
        *cdi_files.DIRECTORIES,
        *(engine.drop_in or engine.config for engine in ENGINES.values()),
    }

    assert {path for path, _, _ in reference.FILES} == known


def returned(command: click.Command) -> set[int]:
    """Exit codes other than 0 in the body of a command's function: ``return 1 if ...``, ``exit(1)``, CHANGES."""
    assert command.callback is not None
    function = inspect.unwrap(command.callback)
    module = importlib.import_module(function.__module__)
    if not hasattr(module, function.__name__):
        return set()
    (tree,) = ast.parse(inspect.getsource(function)).body
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            found |= values(node.value, module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".exit") and node.args:
            found |= values(node.args[0], module)
    return found - {0}


def values(node: ast.expr, module: object) -> set[int]:
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, int) else set()
    if isinstance(node, ast.IfExp):
        return values(node.body, module) | values(node.orelse, module)
    text = ast.unparse(node)
    if "EXIT_CODES" in text:
        from nvc.doctor import report

        return set(report.EXIT_CODES.values())
    if text == "CHANGES" or "_would_change(" in text:
        from nvc.cli.groups import CHANGES

        return {CHANGES, 0}
    return set()


@pytest.mark.parametrize("path", commandtree.leaves())
def test_every_exit_code_is_written_down(path: str) -> None:
    """Written down and not returned is a mistake too."""
    command = commandtree.clicks().get(path)
    if command is None or path == "sim run":  # errors are 1; the program's own code
        return
    written = {int(code) for code, _ in reference.own_exits(f"nvc-py {path}")}

    assert returned(command) == written


def test_the_page_of_errors_has_the_same_codes() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text().split("## Exit codes\n", 1)[1].split("\n## ", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    for program, code, _ in reference.EXITS:
        words = program.removeprefix("nvc-py ") if " " in program else program
        assert code == "*" or any(words in row[0] and code == row[1] for row in rows), (program, code)


@pytest.mark.parametrize("path", ["", *(path for path in commandtree.every() if path != "cdi-hook")])
def test_help_has_them(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    from nvc.cli.main import main

    assert main([*path.split(), "--help"], "nvc-py") == 0
    shown = " ".join(capfd.readouterr().out.split())
    name = f"nvc-py {path}".strip()
    for code, meaning in reference.own_exits(name):
        assert f"{code} {meaning}" in shown
    if not path:
        for term, meaning in reference.environment(name):
            assert f"{term} {meaning}" in shown
