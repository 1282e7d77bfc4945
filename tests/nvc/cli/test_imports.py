"""What the command imports is paid for by every container: the list is held here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
FORBIDDEN = {
    "json",
    "re",
    "enum",
    "dataclasses",
    "typing",
    "contextlib",
    "collections",
    "functools",
    "socket",
    "subprocess",
    "logging",
    "click",
    "pathlib",
    "tempfile",
    "signal",
    "shutil",
    "glob",
    "warnings",
    "traceback",
}

READ = str(Path(__file__).parent / "programs/read_command_line.py")


def imported(*arguments: str) -> set[str]:
    """The modules that a bare interpreter prints with these arguments; or, of one, has after running it."""
    if len(arguments) == 1:
        arguments = (
            "-c",
            f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n{arguments[0]}\nprint(sorted(sys.modules))",
        )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(ran.stdout.splitlines()[-1].replace("'", '"')))


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["import nvc.cli.main"], id="main"),
        pytest.param(
            [READ, str(REPOSITORY), "configure", "--device=0", "-cu", "--pid=7", "--require=cuda>1", "/r"],
            id="configure",
        ),
        pytest.param([READ, str(REPOSITORY), "list", "--device=0", "-l"], id="list"),
        pytest.param([READ, str(REPOSITORY), "info", "--csv"], id="info"),
        pytest.param(
            ["import nvc.request.selection, nvc.request.requirements, nvc.request.capabilities, nvc.base.log"],
            id="pure",
        ),
        pytest.param(["from nvc.cli.main import main; main(['configure', '--foo'], 'p')"], id="usage-error"),
        pytest.param(["from nvc.cli.main import main; main(['configure', '/'], 'p')"], id="input-error"),
        pytest.param(["from nvc.cli.main import main; main(['-V'], 'p')"], id="version"),
    ],
)
def test_the_start_up_path_imports_nothing_expensive(words: list[str]) -> None:
    assert imported(*words) & FORBIDDEN == set()


@pytest.mark.parametrize("words", [["configure", "--foo"], ["configure", "/"], ["--user=x:y:z", "info"], ["-V"]])
def test_a_mistake_on_the_command_line_starts_nothing(words: list[str]) -> None:
    modules = imported(f"from nvc.cli.main import main; main({words!r}, 'p')")
    assert not {
        name for name in modules if name.startswith(("nvc.inject.api", "nvc.linux", "nvc.driver", "rpc", "ctypes"))
    }


def test_the_library_imports_what_a_container_needs_when_there_is_one() -> None:
    """NVML is initialised meanwhile, and list and info need none of it."""
    found = imported("from nvc.inject import api; api.Context")
    assert not {name for name in found if name.startswith(("nvc.container", "nvc.inject.session", "rpc"))}

    found = imported("from nvc.inject import api; api.ContainerConfig, api.ContainerSession")
    assert {"nvc.container.messages", "nvc.inject.session"} <= found
