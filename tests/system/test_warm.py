"""Containers configured by a pre-fork server: the result is what the Python program makes; nothing stays half done."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import cgroupview, injection, launchers, leftovers, sight
from tests.support.bed import PAIRS, Bed, gpu_env
from tests.support.bundle import Container, Hook
from tests.support.cgroupview import CgroupView
from tests.support.paused import Paused
from tests.support.runtimes import OciRuntime, Result
from tests.support.warm import WarmBed, waiting_for_ldconfig

pytestmark = pytest.mark.system

PROGRAMS = launchers.CHECKOUT / "tests/support/programs"
MANY = 64
AT_ONCE = 16


class Beside(CgroupView):
    """A view in the mount namespace of a process that is there already: pre-fork servers serve their own one only."""

    def wrap(self, command: list[str]) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self.script}/ns/mnt", *command]


@pytest.fixture(scope="module")
def installed(whole_bed: Bed) -> WarmBed:
    """An installation whose client asks a socket of its own; it is not served yet."""
    return WarmBed(whole_bed.directory("warm"))


@pytest.fixture
def warm(installed: WarmBed) -> Iterator[WarmBed]:
    installed.start()
    with installed:
        yield installed


@pytest.fixture(params=PAIRS, ids="-".join)
def here(
    request: pytest.FixtureRequest, bed: Bed, installed: WarmBed, need: Callable[..., None]
) -> Iterator[OciRuntime]:
    """Each runtime in each view, in the mount namespace of the pre-fork server."""
    name, kind = request.param
    need(name, "nsenter")
    view = cgroupview.named(kind)
    if view is None:
        pytest.skip(f"this machine cannot show cgroup {kind}")
    installed.start(view)
    with installed:
        beside = Beside(kind, view.devices, str(installed.pid))
        made = OciRuntime(name, beside, bed.directory("state"), bed.preload(name, kind), bed.env)
        yield made
        made.clean()


def call(bed: Bed, *command: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = bed.call(*command, env=env)
    return result.code, result.out, result.err


SERVED = [
    pytest.param("nvc-py", "configure --device=0 --compute --utility --pid={pid} {tree}", id="success"),
    pytest.param("nvidia-container-cli", "configure -d 0 -u --pid={pid} {tree}", id="other name"),
    pytest.param("nvc-py", "configure --device=0 --pid={pid} --dry-run {tree}", id="dry run"),
    pytest.param("nvc-py", "configure --device=0 --pid={pid} --dry-run=json {tree}", id="dry run as JSON"),
    pytest.param("nvc-py", "configure --device=7 --pid={pid} {tree}", id="no such device"),
    pytest.param("nvc-py", "configure --device=0 --require=cuda>=99 --pid={pid} {tree}", id="requirement"),
    pytest.param("nvc-py", "configure --device=0 --pid=4194303 {tree}", id="no such process"),
    pytest.param("nvidia-container-cli", "configure --device=0 --pid={pid} /nowhere", id="no such rootfs"),
    pytest.param("nvc-py", "--debug=/nowhere/file configure --device=0 --pid={pid} {tree}", id="no debug log"),
]
PYTHON = [
    pytest.param("nvc-py", "--help", id="help"),
    pytest.param("nvc-py", "configure --pid=1 --help", id="help of the command"),
    pytest.param("nvc-py", "configure --pid={pid} --bad {tree}", id="bad option"),
    pytest.param("nvc-py", "configure --pid={pid}", id="missing rootfs"),
    pytest.param("nvc-py", "configure --pid=x {tree}", id="bad pid"),
    pytest.param("nvc-py", "configure --pid=0 --device=7 {tree}", id="standalone"),
    pytest.param("nvc-py", "configure --device --pid={pid} {tree}", id="a value that looks like a pid"),
    pytest.param("nvc-py", "--debug=/dev/fd/9 configure --device=7 --pid={pid} {tree}", id="the caller's own file"),
    pytest.param("nvc-py", "list", id="list"),
    pytest.param("nvc-py", "runtime configure --pid=3", id="another configure"),
    pytest.param("nvc-hook", "poststop", id="idle stage"),
    pytest.param("nvc-hook", "createContainer", id="inside stage"),
]


def both(
    bed: Bed, warm: WarmBed, runtime: OciRuntime, program: str, words: str, env: dict[str, str] | None = None
) -> tuple[tuple[int, str, str], bool]:
    """The same from the client and from the Python program, each on a container of its own; was it served warm?"""
    sim = [f"--sim={bed.machine('h200')}"] if program != "nvc-hook" else []
    answers, served = [], False
    for path in (str(warm.prefix / "bin" / program), warm.python(program)):
        held = Paused(bed, runtime, Container(bed.rootfs(), ["/bin/true"]))
        try:
            before = warm.served()
            texts = [word.format(pid=held.pid, tree=held.tree) for word in words.split()]
            code, out, err = call(bed, path, *sim, *texts, env=env)
            served |= warm.served() != before
            # Not in a GPU's UUID.
            number = re.compile(rf"(?<![\w-]){held.pid}(?![\w-])")
            seen = [number.sub("PID", text.replace(str(held.tree), "TREE")) for text in (out, err)]
            answers.append((code, *seen))
            if code == 0 and "dry-run" not in words and program != "nvc-hook" and "configure" in words:
                mounted = Path(f"/proc/{held.pid}/mountinfo").read_text()
                assert ("libcuda" in mounted) == ("--compute" in words)
        finally:
            held.release()
    assert answers[0] == answers[1]
    return answers[0], served


@pytest.mark.parametrize(("program", "words"), SERVED)
def test_the_same_comes_out(bed: Bed, warm: WarmBed, runc: OciRuntime, program: str, words: str) -> None:
    (code, out, err), served = both(bed, warm, runc, program, words)

    assert served
    assert code in (0, 1)
    assert out or err


@pytest.mark.parametrize(("program", "words"), PYTHON)
def test_everything_else_is_for_the_python_program(
    bed: Bed, warm: WarmBed, runc: OciRuntime, program: str, words: str
) -> None:
    assert not both(bed, warm, runc, program, words)[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("LD_LIBRARY_PATH", "/nowhere"), ("LC_ALL", "de_DE.ISO-8859-1"), ("NVC_DEBUG_FILE", "/dev/fd/9")],
)
def test_an_environment_that_works_at_a_start_is_for_the_python_program(
    bed: Bed, warm: WarmBed, runc: OciRuntime, name: str, value: str
) -> None:
    words = "configure --device=7 --pid={pid} {tree}"

    assert not both(bed, warm, runc, "nvc-py", words, {name: value})[1]


def test_without_an_agent_python_does_it(bed: Bed, installed: WarmBed, runc: OciRuntime) -> None:
    held = Paused(bed, runc, Container(bed.rootfs(), ["/bin/true"]))
    words = ["configure", "-d", "0", "-c", f"--pid={held.pid}", str(held.tree)]

    assert call(bed, installed.commands.nvc, f"--sim={bed.machine('h200')}", *words)[0] == 0
    assert "libcuda" in Path(f"/proc/{held.pid}/mountinfo").read_text()
    assert held.release().code == 0


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_the_hook_in_a_real_container(bed: Bed, installed: WarmBed, here: OciRuntime, stage: str) -> None:
    before = installed.served()
    hook = Hook(
        installed.commands.hook, ["nvc-hook", "--sim", str(bed.machine("h200")), stage], bed.hook("prestart").env
    )
    look = sight.arguments(nodes=["/dev/nvidia0"], libraries=["libcuda.so.1"])
    result = bed.run(here, Container(bed.rootfs(), look, gpu_env("all"), {stage: [hook]}))

    assert (result.code, result.complaints) == (0, "")
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia0": "ENXIO"}
    assert seen.libraries["libcuda.so.1"]
    assert installed.served() != before


def test_a_runtime_in_another_mount_namespace_gets_it_from_python(bed: Bed, warm: WarmBed, runc: OciRuntime) -> None:
    before = warm.served()
    hook = Hook(
        warm.commands.hook, ["nvc-hook", "--sim", str(bed.machine("h200")), "prestart"], bed.hook("prestart").env
    )
    look = sight.arguments(nodes=["/dev/nvidia0"])
    result = bed.run(runc, Container(bed.rootfs(), look, gpu_env("all"), {"prestart": [hook]}))

    assert (result.code, result.complaints) == (0, "")
    assert sight.read(result.out).nodes == {"/dev/nvidia0": "ENXIO"}
    assert warm.served() == before


@pytest.mark.parametrize("words", [["setpriv", "--bounding-set=-sys_module"], ["setpriv", "--no-new-privs"]])
def test_a_caller_with_fewer_rights_gets_none_by_asking(
    bed: Bed, warm: WarmBed, need: Callable[..., None], words: list[str]
) -> None:
    need("setpriv")
    before = warm.served()
    client = [warm.commands.nvc, f"--sim={bed.machine('h200')}", "configure", "--device=0", "--pid=4194303", "/nowhere"]

    assert call(bed, *words, *client)[0] == 1
    assert warm.served() == before
    assert call(bed, *client)[0] == 1
    assert warm.served() != before


def test_a_server_that_is_confined_as_its_unit_does_serves(bed: Bed, installed: WarmBed, runc: OciRuntime) -> None:
    """NoNewPrivileges=, RestrictRealtime= and the like are flags and filters that no engine has: none was served."""
    with installed:
        # A system call that nothing here makes (syslog).
        installed.start(words=[sys.executable, str(PROGRAMS / "under_filter.py"), "103"])
        (code, out, err), served = both(
            bed, installed, runc, "nvc-py", "configure --device=0 --compute --pid={pid} {tree}"
        )
    assert (code, out, served) == (0, "", True), err


@pytest.mark.timeout(300)
def test_sixty_four_at_once(bed: Bed, warm: WarmBed, runc: OciRuntime) -> None:
    descriptors = warm.descriptors()

    def hold(_: int) -> Paused:
        return Paused(bed, runc, Container(bed.rootfs(), ["/bin/true"]))

    def configure(held: Paused) -> tuple[int, str, bool]:
        words = ["configure", "-d", "0", "-c", "-u", f"--pid={held.pid}", str(held.tree)]
        # As long as it takes: a busy machine is no matter here.
        result = bed.call(warm.commands.nvc, f"--sim={bed.machine('h200')}", "--timeout=60", *words)
        return result.code, result.complaints, "libcuda" in Path(f"/proc/{held.pid}/mountinfo").read_text()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        containers = list(pool.map(hold, range(MANY)))
    with ThreadPoolExecutor(MANY) as pool:
        assert list(pool.map(configure, containers)) == [(0, "", True)] * MANY
    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert [result.code for result in pool.map(Paused.release, containers)] == [0] * MANY
    # Its answers come a moment before it lets go of a client and a worker.
    assert leftovers.until(lambda: warm.descriptors() == descriptors, seconds=30), warm.descriptors()


def begun(bed: Bed, warm: WarmBed, held: Paused) -> subprocess.Popen[str]:
    """A configure whose first mount is in the container."""
    before = leftovers.mountinfo(held.pid, token=bed.token)
    words = ["configure", "-d", "0", "-c", "-u", f"--pid={held.pid}", str(held.tree)]
    client = subprocess.Popen(
        [warm.commands.nvc, f"--sim={bed.machine('h200')}", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], **bed.env},
    )
    until = time.monotonic() + 40
    while leftovers.mountinfo(held.pid, token=bed.token) == before:
        assert time.monotonic() < until
        time.sleep(0.0005)
    return client


def whole_or_nothing(bed: Bed, held: Paused, before: list[str], files: object) -> bool:
    """Wait until the container is as it was (True), or done to the end (False)."""

    def settled() -> bool:
        mounts = leftovers.mountinfo(held.pid, token=bed.token)
        if mounts == before:
            return injection.tree(held.tree) == files
        said = "\n".join(mounts)
        with contextlib.suppress(FileNotFoundError):  # it may be taken back while we look
            cache = (held.tree / "etc/ld.so.cache").read_bytes()
            return "/dev/nvidia0" in said and "libcuda" in said and b"libcuda.so.1" in cache
        return False

    assert leftovers.until(settled, seconds=40), "half of it was left in the container"
    return leftovers.mountinfo(held.pid, token=bed.token) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_in_the_middle_takes_everything_back(
    bed: Bed, warm: WarmBed, runc: OciRuntime, number: signal.Signals
) -> None:
    held = Paused(bed, runc, Container(bed.rootfs(), ["/bin/true"]))
    before, files = leftovers.mountinfo(held.pid, token=bed.token), injection.tree(held.tree)
    client = begun(bed, warm, held)
    client.send_signal(number)
    client.communicate(timeout=60)
    undone = whole_or_nothing(bed, held, before, files)
    # A keyboard's interrupt is an exit code of ours; the others end the client as they would have ended Python.
    ended = 130 if number == signal.SIGINT else -number
    assert client.returncode == (ended if undone else client.returncode)
    assert client.returncode in (0, ended)
    held.release()


def test_an_agent_that_dies_in_the_middle_fails_the_client_and_leaves_nothing(
    bed: Bed, installed: WarmBed, runc: OciRuntime
) -> None:
    for _ in range(20):
        installed.start()
        held = Paused(bed, runc, Container(bed.rootfs(), ["/bin/true"]))
        before, files = leftovers.mountinfo(held.pid, token=bed.token), injection.tree(held.tree)
        try:
            client = begun(bed, installed, held)
            os.kill(installed.pid, signal.SIGKILL)
            _, errors = client.communicate(timeout=60)
        finally:
            installed.stop()
        undone = whole_or_nothing(bed, held, before, files)
        held.release()
        if undone or client.returncode:
            break  # else all was done before we came to kill it
    assert client.returncode == 1
    assert "agent error: the agent ended in the middle of the work" in errors


def test_an_agent_that_ends_lets_what_has_begun_come_to_its_end(bed: Bed, installed: WarmBed, runc: OciRuntime) -> None:
    installed.start()
    held = Paused(bed, runc, Container(bed.rootfs(), ["/bin/true"]))
    client = begun(bed, installed, held)
    installed.stop()
    client.communicate(timeout=60)

    assert client.returncode == 0
    assert held.release().code == 0


def test_another_version_is_not_served_and_makes_the_warm_process_go(bed: Bed, installed: WarmBed) -> None:
    installed.start()
    process = installed.process
    assert process is not None and process.stdout is not None
    file = installed.library / "nvc/__init__.py"
    words = [f"--sim={bed.machine('h200')}", "configure", "--device=0", "--pid=4194303", "/nowhere"]
    expected = call(bed, installed.python("nvc-py"), *words)
    try:
        file.touch()  # as an upgrade does, which also changes what is in it
        assert call(bed, installed.commands.nvc, *words) == expected
        assert os.read(process.stdout.fileno(), 64) == b"stale\n"
        assert process.wait(40) == 75
    finally:
        installed.stop()


def test_limits_and_mask_are_the_callers(bed: Bed, warm: WarmBed) -> None:
    """--debug makes its file with the caller's umask; a file size limit of the caller's keeps it empty."""
    directory = bed.directory("log")
    words = f"--sim={bed.machine('h200')} --debug=log configure --device=0 --pid=4194303 /nowhere"
    before = warm.served()
    script = f"cd {directory} && umask 077 && {warm.commands.nvc} {words}"
    result: Result = bed.call("sh", "-c", script)

    assert result.code == 1
    log = directory / "log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.stat().st_size > 0
    log.unlink()
    assert bed.call("sh", "-c", f"ulimit -f 0; {script}").code == 1
    assert log.stat().st_size == 0
    assert warm.served() != before


@pytest.mark.parametrize("program", ["nvc-py", "nvc-hook"])
def test_everything_that_the_work_imports_is_there(
    bed: Bed, installed: WarmBed, runc: OciRuntime, program: str
) -> None:
    """What is imported anew for each container is what this is all about: in the process itself and in its helper."""
    held = Paused(bed, runc, Container(bed.rootfs(), ["/bin/true"], gpu_env("all")))
    sim = str(bed.machine("h200"))
    bed.call(installed.commands.nvc, "--sim", sim, "list", check=True)  # an inventory to be found
    words = ["--sim", sim, "configure", "--device=0", "--compute", f"--pid={held.pid}", str(held.tree)]
    if program == "nvc-hook":
        words = ["--sim", sim, "prestart"]
    bundle = bed.bundle(Container(held.tree, ["/bin/true"], gpu_env("all")))
    state = bed.directory("state") / "state.json"
    state.write_text(
        json.dumps({"ociVersion": "1.0.2", "id": "c", "status": "creating", "pid": held.pid, "bundle": str(bundle)})
    )
    report = bed.directory("modules") / "report"
    script = Path(__file__).parent / "programs/report_imports.py"
    command = [launchers.interpreter(), "-IS", script, installed.library, report, program, *words]
    with state.open() as stdin:
        subprocess.run(command, stdin=stdin, check=True, timeout=60)

    assert held.release().code == 0
    # The helper, and the process itself, which does not wait until its helper has ended.
    assert leftovers.until(lambda: len(report.read_text().splitlines()) >= 2, seconds=30)
    assert set(report.read_text().splitlines()) == {"0"}


def test_the_process_of_ldconfig_has_no_memory_to_speak_of(warm: WarmBed) -> None:
    """A wait for ldconfig does not include the end of a Python process's memory."""
    if not (warm.library / "nvc/linux/_raw.abi3.so").exists():
        pytest.skip("no Python headers to build it with")
    until = time.monotonic() + 40
    while (found := waiting_for_ldconfig(warm.pid)) is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    status = Path(f"/proc/{found}/status").read_text()

    assert int(status.partition("VmRSS:")[2].split()[0]) < 1000  # kB
    assert "python" not in Path(f"/proc/{found}/maps").read_text()
