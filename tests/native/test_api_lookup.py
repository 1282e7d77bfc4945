"""Lookups with a wrapper library preloaded: exactly as without it, but for the driver's functions that it wraps."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from nvc.share import region
from tests.support.fake_driver import API, MANAGED, MIB, SOURCES, Container, compile_library, driver, gpu, rows
from tests.support.native import build

#: Names that one of the tables has.
NAMES = sorted({symbol for symbol, _ in rows(API)})
FOREIGN = [
    "puts",
    "malloc",
    "curl_easy_init",
    "cublasCreate_v2",
    "cudnnCreate",
    "cudaMalloc",
    "cudaGetExportTable",
    "customer_cuMemAlloc_v2",
    "cuInit",
    "cuMemAlloc_v",
    "cuMemAlloc_v22",
    "cuMemAlloc_v3",
    "cu",
    "c",
    "n",
    "nvmlInit_v2",
    "dladdr",
    "dlclose",
    "dls",
    "dlsyms",
    "nvmlDeviceGetMemoryInfo_v",
]


@pytest.fixture(params=[API, MANAGED])
def table(request: pytest.FixtureRequest) -> str:
    """The library that is preloaded."""
    return str(request.param)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lookups")
    library = compile_library(SOURCES / "lookups.c", folder / "liblookups.so")
    here = f"-Wl,-rpath,{folder}"
    compile_library(SOURCES / "lookups.c", folder / "lookups", "-pie", "-DMAIN", str(library), here)
    compile_library(SOURCES / "chain.c", folder / "chain", "-pie")
    for name, flags in {
        "before": (),
        "after": (),
        "before_handle": ("-DBY_HANDLE",),
        "after_handle": ("-DBY_HANDLE",),
    }.items():
        compile_library(SOURCES / "interposer.c", folder / f"{name}.so", f"-DNAME={name}", *flags)
    return folder


def run(program: Path, *words: str | Path, preload: str = "", folder: Path | None = None) -> str:
    environment = {**os.environ, "LD_PRELOAD": preload}
    if folder:
        environment["LD_LIBRARY_PATH"] = str(folder)
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def preloaded(table: str, program: Path, *words: str | Path, folder: Path | None = None) -> str:
    return run(program, *words, preload=str(build() / table), folder=folder)


def expected(without: str, table: str) -> str:
    """The results without the library, with its functions in the place of the driver's."""
    wrapped = {symbol for symbol, _ in rows(table)}
    return re.sub(
        r"(?:libcuda|libnvidia-ml)\.so\.1 (\w+)$",
        lambda match: f"{table} {match[1]}" if match[1] in wrapped else match[0],
        without,
        flags=re.MULTILINE,
    )


def named(text: str, table: str) -> str:
    """The small library's results have no symbol for dladdr: the name of the lookup is used."""
    return re.sub(rf"^(.* (\w+): {re.escape(table)}) -$", r"\1 \2", text, flags=re.MULTILINE)


@pytest.mark.parametrize("driver_there", [False, True], ids=["no-driver", "driver"])
def test_foreign_names_are_found_where_they_always_are(programs: Path, table: str, *, driver_there: bool) -> None:
    others = set(NAMES) - {symbol for symbol, _ in rows(table)}
    words = ["libcuda.so.1", "libm.so.6", "--", *FOREIGN, *sorted(others)]
    folder = driver() if driver_there else None
    without = run(programs / "lookups", *words, folder=folder)
    assert preloaded(table, programs / "lookups", *words, folder=folder) == without
    assert "threads that differ: 0" in without
    assert ("cannot open libcuda.so.1" in without) != driver_there


def test_wrapped_names_are_not_found_without_a_driver(programs: Path, table: str) -> None:
    words = ["--", *NAMES]
    assert preloaded(table, programs / "lookups", *words) == run(programs / "lookups", *words)


@pytest.mark.parametrize("scope", [[], ["-l"]], ids=["global", "local"])
@pytest.mark.parametrize("flags", [(), ("-DOLD",), ("-DNEWER",)], ids=["plain", "old", "newer"])
def test_the_drivers_functions_become_their_wrappers_however_asked(
    programs: Path, table: str, scope: list[str], flags: tuple[str, ...]
) -> None:
    words = [*scope, "libcuda.so.1", "libnvidia-ml.so.1", "--", *NAMES, "cuInit", "cuMemAlloc_v3"]
    folder = driver(*flags)
    without = run(programs / "lookups", *words, folder=folder)
    assert expected(without, table) != without
    assert named(preloaded(table, programs / "lookups", *words, folder=folder), table) == expected(without, table)


def test_an_absolute_path_is_a_driver_too(programs: Path, table: str) -> None:
    path = driver() / "libcuda.so.1"
    text = preloaded(table, programs / "lookups", path, "--", "cuMemAllocManaged")
    assert f"handle2 cuMemAllocManaged: {table} " in text


def test_a_second_copy_in_a_namespace_of_its_own_keeps_its_functions(programs: Path, table: str) -> None:
    path = driver() / "libcuda.so.1"
    text = preloaded(table, programs / "lookups", path, "-m", path, "--", "cuMemAllocManaged")
    assert f"program handle2 cuMemAllocManaged: {table} " in text
    assert "program handle3 cuMemAllocManaged: libcuda.so.1 cuMemAllocManaged" in text


def test_a_library_bound_deeply_goes_round_and_nothing_breaks(tmp_path: Path) -> None:
    path = compile_library(SOURCES / "lookups.c", tmp_path / "libdeep.so")
    container = Container(tmp_path, gpu(0, 64 * MIB), version="9999.1")
    container.check("function_lookup.py", "deeply_bound", str(path))


def test_dlsym_itself_is_the_librarys_by_every_way(programs: Path, table: str) -> None:
    text = preloaded(table, programs / "lookups", "--", "dlsym", "dlvsym")
    answers = {
        (source, way): found for source, way, found in re.findall(r"^(\w+) (\S+) dlv?sym: (\S+) ", text, re.MULTILINE)
    }
    # An interposer after this library in the chain looks up the next one after itself, and must get that.
    behind = {("library", "next")}
    assert {found for asked, found in answers.items() if asked not in behind} == {table}, text
    assert answers["library", "next"] != table


@pytest.mark.parametrize("before", ["before", "before_handle", ""])
@pytest.mark.parametrize("after", ["after", "after_handle", "after after_handle", ""])
def test_chains_of_interposers_end_and_skip_none(programs: Path, table: str, before: str, after: str) -> None:
    chain = [programs / f"{name}.so" for name in before.split()]
    chain += [build() / table, *(programs / f"{name}.so" for name in after.split())]
    names = [*before.split(), *after.split()]
    without = run(programs / "chain", *names, preload=":".join(str(x) for x in chain if x.name != table))
    with_ours = run(programs / "chain", *names, preload=":".join(map(str, chain)))
    # A lookup with a version skips interposers without one; this library has all versions, and skips none.
    assert set(re.findall(r"(\w+) asked", with_ours)) >= set(re.findall(r"(\w+) asked", without))
    assert "missing" not in with_ours
    assert len(with_ours.splitlines()) == len(names)


@pytest.mark.parametrize("flags", [(), ("-DNEWER",)], ids=["plain", "newer"])
def test_the_drivers_answers_to_cugetprocaddress_stay_but_for_the_wrappers(
    tmp_path: Path, table: str, flags: tuple[str, ...]
) -> None:
    names = sorted(
        {base for _, base in rows(API)}
        | {*NAMES, "cuInit", "cuStreamSynchronize", "cuFromTomorrow", "cuNoSuch", "", "curl_easy_init"}
    )
    container = Container(tmp_path, gpu(0, MIB))
    program = ("function_lookup.py", "addresses", *names)
    without = container.run(*program, flags=flags, library="")
    ours = container.run(*program, flags=flags, library=table)
    assert (without.returncode, without.stderr, ours.returncode, ours.stderr) == (0, "", 0, "")
    wanted = expected(without.stdout, table)
    if table == MANAGED:
        wanted = re.sub(rf"{table} \w+$", f"{table} -", wanted, flags=re.MULTILINE)
    assert ours.stdout == wanted != without.stdout
    if table == API:
        assert f"{API} cuMemAlloc\n" in ours.stdout and f"{API} cuMemAllocAsync_ptsz\n" in ours.stdout


def test_private_tables_are_passed_through_and_counted(tmp_path: Path) -> None:
    container = Container(tmp_path, gpu(0, MIB), version="9999.1")
    container.check("function_lookup.py", "private_table")
    with container.region.open("rb") as file:
        assert os.pread(file.fileno(), 8, region.NOTE + 31 * 16)[0] == 1


def test_a_look_up_changes_nothing_in_the_process(tmp_path: Path) -> None:
    container = Container(tmp_path, gpu(0, 64 * MIB), version="9999.1")
    container.check("function_lookup.py", "unchanged_process")
