"""The preloaded libraries do no harm: ordinary programs end, print and are as they are without them.

They are loaded as in a container, by /etc/ld.so.preload, and find neither limits nor a region: the worst they can meet.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from nvc.share import preload
from tests.support import harmless, native
from tests.support.bed import Bed
from tests.support.harmless import ENVIRONMENT, Ground

pytestmark = [pytest.mark.root, pytest.mark.system]

HABITS = ("state", "threads", "signals", "altstack", "vfork", "storm", "daemon", "dlopen", "descriptors", "uid")
UNPRIVILEGED = 65534
SCRIPTS = {script.name: script for script in harmless.scripts()}


#: What containers preload: with a share of the time alone, with a limit of memory, and where that is not enough.
SHARES = {
    "time": preload.names(memory=False, api=False),
    "memory": preload.names(memory=True, api=False),
    "oversubscribed": preload.names(memory=True, api=True),
}


@pytest.fixture(scope="module", params=SHARES)
def libraries(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return SHARES[request.param]


@pytest.fixture(scope="module")
def ground(whole_bed: Bed, libraries: tuple[str, ...]) -> Ground:
    """The libraries, and what programs need that run with them."""
    place = whole_bed.directory("harmless")
    shutil.copytree(native.build("preload/.made") / "preload", place / "preload", symlinks=True)
    return harmless.prepare(place, [f"{place}/preload/$PLATFORM/{name}" for name in libraries])


def _preloaded(ground: Ground, libraries: tuple[str, ...]) -> str:
    """For LD_PRELOAD."""
    folder = ground.programs.parent / "preload" / os.uname().machine
    return ":".join(str(folder / name) for name in libraries)


def _same(ground: Ground, command: list[str], *, user: int = 0) -> harmless.Outcome:
    without = ground.run(command, preload=False, user=user)
    assert ground.run(command, preload=True, user=user) == without
    return without


def test_the_libraries_are_there_in_one_case_and_not_in_the_other(ground: Ground, libraries: tuple[str, ...]) -> None:
    """Else nothing below would mean anything."""
    look = ["/bin/cat", "/proc/self/maps"]
    with_libraries, without = ground.run(look, preload=True).out, ground.run(look, preload=False).out
    assert {name for name in preload.LIBRARIES if name in with_libraries} == set(libraries)
    assert "libnvc" not in without


def test_there_are_forty() -> None:
    assert len(SCRIPTS) >= 40


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_does_not_notice(ground: Ground, name: str) -> None:
    script = SCRIPTS[name]
    if shutil.which(script.program, path=ENVIRONMENT["PATH"]) is None:
        pytest.skip(f"{script.program} not installed")

    outcome = _same(ground, ["/bin/sh", "-c", script.text])

    assert outcome.out or outcome.err, "a program that says nothing compares nothing"


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("build", harmless.BUILDS)
def test_the_state_of_a_process_is_untouched(ground: Ground, build: str, habit: str) -> None:
    program = harmless.build_habits(ground, build)
    if program is None:
        pytest.skip(f"no compiler for {build}")

    outcome = _same(ground, [str(program), habit])

    assert outcome.out
    assert outcome.code == (3 if habit == "vfork" else 0), outcome


@pytest.mark.parametrize("build", ["dynamic", "static"])
def test_a_program_with_the_set_user_id_bit(ground: Ground, build: str) -> None:
    program = harmless.build_habits(ground, build)
    assert program is not None
    privileged = program.with_name(f"{program.name}-setuid")
    shutil.copy(program, privileged)
    os.chown(privileged, 0, 0)
    privileged.chmod(0o4755)

    outcome = _same(ground, [str(privileged), "uid"], user=UNPRIVILEGED)

    if "effective 0" not in outcome.out:
        pytest.skip(f"{privileged.parent} is mounted nosuid")
    assert outcome.out.startswith(f"uid {UNPRIVILEGED} effective 0 secure 1\n")


def test_a_user_without_rights(ground: Ground) -> None:
    program = harmless.build_habits(ground, "dynamic")
    assert program is not None
    _same(ground, [str(program), "state"], user=UNPRIVILEGED)


def test_a_program_without_standard_descriptors(ground: Ground) -> None:
    """What it opens first gets the numbers 0, 1 and 2: none of ours may be among them."""
    program = harmless.build_habits(ground, "dynamic")
    outcome = _same(ground, ["/bin/sh", "-c", f"exec 3>&1 <&- >&- 2>&-; {program} descriptors >&3"])
    assert "descriptor 3" in outcome.out


def test_a_32_bit_program_finds_something_it_can_load_and_says_nothing(ground: Ground) -> None:
    """Without a library of its own size its loader would complain on stderr, in every program."""
    library = next((path for path in ("/lib32/libc.so.6", "/usr/lib32/libc.so.6") if os.path.exists(path)), "")
    if not library or not os.path.exists("/lib/ld-linux.so.2"):
        pytest.skip("no 32-bit libc (libc6-i386)")
    program = ground.programs / "narrow"
    libc = ["-nostdlib", library, "-Wl,--dynamic-linker=/lib/ld-linux.so.2"]
    source = harmless.SOURCE.with_name("narrow.c")
    subprocess.run(["gcc", "-m32", "-ffreestanding", "-O1", "-no-pie", "-o", program, source, *libc], check=True)

    outcome = _same(ground, [str(program)])

    assert (outcome.code, outcome.out, outcome.err) == (0, "narrow\n", "")


def test_a_program_that_looks_for_races_reports_the_same(ground: Ground) -> None:
    """The sanitizer's runtime stands behind the libraries, and calls close in the middle of a report."""
    program = ground.programs / "race"
    flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-fsanitize=thread")
    source = harmless.SOURCE.with_name("race.c")
    if not program.exists():
        done = subprocess.run(["gcc", *flags, "-D_GNU_SOURCE", "-o", program, source, "-ldl"], capture_output=True)
        if done.returncode:
            pytest.skip("the compiler has no thread sanitizer")
    fixed = ["setarch", "-R"]  # some kernels place more at random than the sanitizer can bear
    without = ground.run([*fixed, str(program)], preload=False)
    if "unexpected memory mapping" in without.err or not without.err:
        pytest.skip(f"the thread sanitizer does not run here: {without.err}")

    with_libraries = ground.run([*fixed, str(program)], preload=True)

    def said(outcome: harmless.Outcome) -> list[str]:
        """Less numbers of processes and addresses."""
        return re.sub(r"\b0x[0-9a-f]{6,}|\b[pt]id=[0-9]+", "X", outcome.err).splitlines()

    assert said(with_libraries) == said(without)
    assert without.err.count("WARNING: ThreadSanitizer: data race") == 1
    assert with_libraries.out == without.out == "not found\n2 2\n"
    assert with_libraries.code == without.code == 66


def test_musl_takes_the_library_from_its_variable(ground: Ground, libraries: tuple[str, ...]) -> None:
    """musl's loader reads no /etc/ld.so.preload; an image may name the libraries itself."""
    program = harmless.build_habits(ground, "musl")
    if program is None:
        pytest.skip("no musl-gcc")
    preloading = ENVIRONMENT | {"LD_PRELOAD": _preloaded(ground, libraries)}
    for habit in ("threads", "signals", "storm", "daemon"):
        without = ground.run([str(program), habit], preload=False)
        assert ground.run([str(program), habit], preload=False, environment=preloading) == without


def test_the_first_library_asks_for_little() -> None:
    """It needs libc alone, has no constructor that prints, and exports what it stands before and nothing else."""
    library = native.build() / preload.LIBRARY
    done = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    needed = [line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if "(NEEDED)" in line]
    assert set(needed) <= {"libc.so.6"}
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    names = {line.split()[2].partition("@")[0] for line in done.stdout.splitlines()}
    ours = {name for name in names if name.startswith("nvc_shim_")}  # for the others
    assert names - ours == {"ioctl", "mmap", "mmap64", "munmap", "close", "dup", "dup2", "dup3", "poll"}
