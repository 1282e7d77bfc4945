"""The error of managed memory that libnvc-shim.so refused; the driver itself gets no other call."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.fake_driver import API, MANAGED, MIB, SOURCES, Container, compile_library, driver, gpu, shim
from tests.support.native import build


@pytest.fixture(params=[API, MANAGED])
def table(request: pytest.FixtureRequest) -> str:
    """The library that is preloaded."""
    return str(request.param)


@pytest.mark.parametrize(
    ("result", "refused", "said"),
    [
        pytest.param(0, 0, 0, id="granted"),
        pytest.param(999, 1, 2, id="a mapping refused"),
        pytest.param(999, 0, 999, id="another unknown error"),
        pytest.param(201, 1, 201, id="an error of its own"),
        pytest.param(2, 1, 2, id="out of memory"),
    ],
)
def test_one_error_becomes_another_and_nothing_else(
    tmp_path: Path, table: str, result: int, refused: int, said: int
) -> None:
    words = map(str, (result, refused, said))
    Container(tmp_path, gpu(0, MIB)).check("managed_errors.py", "result", *words, preload=(shim(),), library=table)


def test_without_the_other_library_the_drivers_result_stays(tmp_path: Path, table: str) -> None:
    Container(tmp_path, gpu(0, MIB)).check("managed_errors.py", "driver_alone", library=table)


def test_an_earlier_refusal_does_not_change_a_later_call(tmp_path: Path, table: str) -> None:
    """A module's own managed memory was refused, by a function that nothing wraps; then something else fails."""
    container, other = Container(tmp_path, gpu(0, MIB)), shim()
    container.check("managed_errors.py", "earlier_refusal", str(other), preload=(other,), library=table)


def test_wrong_arguments_go_to_the_driver(tmp_path: Path, table: str) -> None:
    Container(tmp_path, gpu(0, MIB)).check("managed_errors.py", "wrong_arguments", preload=(shim(),), library=table)


# --- programs that are linked with the driver, or with a replacement of it ------------------------------------------


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program and a library for each chain of libraries that has the driver's names; and what opens libraries."""
    folder = tmp_path_factory.mktemp("linked")
    source, cuda = SOURCES / "linked.c", str(driver() / "libcuda.so.1")
    tracer = compile_library(source, folder / "libtracer.so", "-DTRACER")
    stub = compile_library(source, folder / "libstub.so", "-DSTUB")
    for name, behind in {"direct": (cuda,), "traced": (str(tracer), cuda), "stubbed": (str(stub),)}.items():
        flags = ("-DUSE", "-Wl,--no-as-needed", *behind, f"-Wl,-rpath,{folder}")
        compile_library(source, folder / name, "-pie", "-DMAIN", *flags)
        compile_library(source, folder / f"lib{name}.so", *flags)
    compile_library(source, folder / "opener", "-pie", "-DMAIN")
    return folder


def run(program: Path, *words: str | Path, preload: tuple[Path, ...] = (), **variables: str) -> list[str]:
    environment = {**os.environ, "LD_PRELOAD": ":".join(map(str, preload)), "LD_LIBRARY_PATH": str(driver())}
    environment |= variables
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


#: How `use` of linked.c is reached: linked with the program, or in a library that is opened with RTLD_LOCAL.
OPENED = ["program", "opened", "opened twice"]


def reached(folder: Path, name: str, opened: str, *preload: Path, **variables: str) -> list[str]:
    if opened == "program":
        return run(folder / name, preload=preload, **variables)
    libraries = [folder / f"lib{name}.so"] * (2 if "twice" in opened else 1)
    return run(folder / "opener", *libraries, preload=preload, **variables)


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("name", ["direct", "traced", "stubbed"])
def test_a_linked_program_reaches_what_the_linker_gave(linked: Path, name: str, opened: str) -> None:
    """The driver, a tracer before it, a stub in its place: as without the library, but for the one error."""
    table = build() / MANAGED
    without = reached(linked, name, opened)
    assert reached(linked, name, opened, table) == without
    printed = reached(linked, name, opened, shim(), table)
    if name == "stubbed":
        assert (printed, set(without)) == (without, {"linked 77", "asked 0 77"})
    else:
        assert "linked 999" in without and "asked 0 999" in without
        assert printed == [line if line.startswith("traced") else line.replace("999", "2") for line in without]
        assert ("traced 999" in printed) == (name == "traced")


@pytest.mark.parametrize("opened", OPENED)
def test_a_program_linked_with_the_driver_gets_the_error_of_the_whole_table_too(
    linked: Path, tmp_path: Path, opened: str
) -> None:
    limits = str(Container(tmp_path, gpu(0, MIB)).limits)
    printed = reached(linked, "direct", opened, shim(), build() / API, NVC_SHIM_LIMITS=limits)
    assert printed == [line.replace("999", "2") for line in reached(linked, "direct", opened)]


def test_libraries_of_one_program_may_have_drivers_of_their_own(linked: Path) -> None:
    """One has a stub and the other the real one: each reaches its own, in either order."""
    for order in (("stubbed", "direct"), ("direct", "stubbed")):
        words = [linked / f"lib{name}.so" for name in order]
        without = run(linked / "opener", *words)
        assert run(linked / "opener", *words, preload=(build() / MANAGED,)) == without
