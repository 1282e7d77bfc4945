"""The error of managed memory that libnvc-shim.so refused; and that nobody notices who stands before the driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.fake_driver import API, MANAGED, MIB, SOURCES, Container, compile_library, driver, gpu, shim
from tests.support.native import build

#: Every way to a function that makes managed mappings: by name, and by both versions of cuGetProcAddress.
WAYS = """
pool, stream = c_void_p(2000), c_void_p(1000)
ROWS = [
    ("cuMemAllocManaged", "cuMemAllocManaged", 0, (1,)),
    ("cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 1, (pool, stream)),
    ("cuMemAllocFromPoolAsync_ptsz", "cuMemAllocFromPoolAsync", 2, (pool, stream)),
]
def ways():
    signature = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, *[c_void_p] * 2)
    for symbol, base, flags, more in ROWS:
        yield getattr(cuda, symbol), more
        for ask, *rest in (cuda.cuGetProcAddress,), (cuda.cuGetProcAddress_v2, None):
            address = c_void_p()
            assert ask(base.encode(), byref(address), 12000, c_uint64(flags), *rest) == 0 and address.value
            yield signature(address.value), (*more, 0)[:2]
def outcomes(bytes=MIB):
    found = []
    for call, more in ways():
        pointer = c_uint64(77)
        found.append(call(byref(pointer), c_size_t(bytes), *more))
        assert (found[-1] == 0) == (pointer.value != 77)
    assert len(found) == 9
    return set(found)
"""


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
    program = f"{WAYS}\ncuda.fake_fail({result}, {refused})\nassert outcomes() == {{{said}}}, outcomes()"
    Container(tmp_path, gpu(0, MIB)).check(program, preload=(shim(),), library=table)


def test_without_the_other_library_the_drivers_word_stays(tmp_path: Path, table: str) -> None:
    program = f"{WAYS}\ncuda.fake_fail(999, 1)\nassert outcomes() == {{999}}\n"
    program += "cuda.fake_fail(0, 0)\nassert outcomes() == {0}"
    Container(tmp_path, gpu(0, MIB)).check(program, library=table)


def test_an_earlier_refusal_is_not_this_calls(tmp_path: Path, table: str) -> None:
    """A module's own managed memory was refused, by a function that nobody wraps; then something else fails."""
    Container(tmp_path, gpu(0, MIB)).check(
        f"""{WAYS}
shim = ctypes.CDLL({str(shim())!r})
cuda.fake_fail(999, 0)
for call, more in ways():
    shim.fake_shim_refuse()
    assert call(byref(c_uint64()), c_size_t(MIB), *more) == 999
""",
        preload=(shim(),),
        library=table,
    )


def test_arguments_that_are_wrong_are_the_drivers(tmp_path: Path, table: str) -> None:
    Container(tmp_path, gpu(0, MIB)).check(
        """
assert cuda.cuMemAllocManaged(None, c_size_t(1), 1) == 1 and take(0, "cuMemAllocManaged", 1)[0] == 1
assert take(1, "cuMemAllocManaged", 0)[0] == 1 and managed() == 3
assert cuda.cuMemAllocFromPoolAsync(None, c_size_t(1), c_void_p(2000), None) == 1
cuda.fake_current(-1)
assert take(MIB, "cuMemAllocManaged", 1)[0] == 201
""",
        preload=(shim(),),
        library=table,
    )


# --- programs that are linked with the driver, or with something that stands in for it --------------------------------


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
def test_who_is_linked_reaches_what_the_linker_gave(linked: Path, name: str, opened: str) -> None:
    """The driver, a tracer before it, a stub in its place: as if we were not there, but for the one error."""
    table = build() / MANAGED
    without = reached(linked, name, opened)
    assert reached(linked, name, opened, table) == without
    told = reached(linked, name, opened, shim(), table)
    if name == "stubbed":
        assert (told, set(without)) == (without, {"linked 77", "asked 0 77"})
    else:
        assert "linked 999" in without and "asked 0 999" in without
        assert told == [line if line.startswith("traced") else line.replace("999", "2") for line in without]
        assert ("traced 999" in told) == (name == "traced")


@pytest.mark.parametrize("opened", OPENED)
def test_who_is_linked_with_the_driver_is_told_by_the_whole_table_too(
    linked: Path, tmp_path: Path, opened: str
) -> None:
    limits = str(Container(tmp_path, gpu(0, MIB)).limits)
    told = reached(linked, "direct", opened, shim(), build() / API, NVC_SHIM_LIMITS=limits)
    assert told == [line.replace("999", "2") for line in reached(linked, "direct", opened)]


def test_libraries_of_one_program_may_have_drivers_of_their_own(linked: Path) -> None:
    """One has a stub and the other the real one: each reaches its own, whoever came first."""
    for order in (("stubbed", "direct"), ("direct", "stubbed")):
        words = [linked / f"lib{name}.so" for name in order]
        without = run(linked / "opener", *words)
        assert run(linked / "opener", *words, preload=(build() / MANAGED,)) == without
