"""tools/fresh on a tree of busybox alone: what a step sees, what is said of one that fails; nothing is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import CHECKOUT

from tests.support import cgroupview, leftovers

pytestmark = pytest.mark.root

#: In place of make: each step starts a process that outlives it, in a cgroup below its own.
_MAKE = """\
#!/bin/sh
echo "$1 in $PWD: $(ls), process 1 is $(cat /proc/1/comm), cgroup $(grep ^0: /proc/self/cgroup)," $(ls /dev)
mkdir -p /sys/fs/cgroup/below
sleep 987 &
echo $! >/sys/fs/cgroup/below/cgroup.procs
case $1 in
demo) touch /root/made ;;
deb) ls /root/made; mkdir -p dist build/native; echo a >dist/a.deb; echo b >build/native/cuda_alloc ;;
test) echo "the last words of $* with $JOBS jobs and $PYTEST_FLAGS"; exit 3 ;;
esac
"""
_GIT = ["git", "-c", "user.name=n", "-c", "user.email=e"]


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache with a tree `tiny`, beside a checkout."""
    if shutil.which("busybox") is None:
        pytest.skip("busybox is not installed")
    tree = tmp_path / "cache/tiny"
    for name in ("bin", "usr/bin", "etc", "root", "proc", "sys", "dev", "run", "var/cache/apt/archives"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", tree / "bin/busybox")
    for name in ("sh", "cat", "ls", "mkdir", "sleep", "touch", "cp", "grep", "umount", "rmdir", "tr"):
        (tree / "bin" / name).symlink_to("busybox")
    (tree / "usr/bin/make").write_text(_MAKE)
    (tree / "usr/bin/make").chmod(0o755)
    (tree / ".nvc-complete").write_text("git make\n")
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "README.md").write_text("as it was committed\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"]):
        subprocess.run([*_GIT, *command], cwd=checkout, check=True)
    (checkout / "README.md").write_text("changed\n")
    (tmp_path / "cgroups").write_text("\n".join(map(str, cgroupview.directories("nvc-fresh-"))))
    yield tmp_path / "cache"
    assert leftovers.until(lambda: not left(tmp_path), seconds=30), left(tmp_path)


def left(directory: Path) -> list[str]:
    """Mounts, cgroups, processes and files of a run; another one may be under way on the machine."""
    before = (directory / "cgroups").read_text().splitlines()
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line]
    found += [str(path) for path in cgroupview.directories("nvc-fresh-") if str(path) not in before]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [str(path)] if path.read_bytes() == b"sleep\x00987\x00" else []
        except OSError:
            continue
    return found + [str(path) for path in (directory / "cache/run",) if path.exists()]


def command(cache: Path) -> list[str]:
    return [str(CHECKOUT / "tools/fresh"), str(cache), str(cache.parent / "checkout")]


def fresh(cache: Path, steps: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "TREES": "tiny", "STEPS": steps, **environment}
    return subprocess.run(command(cache), env=variables, capture_output=True, text=True, timeout=60, check=False)


def test_steps_run_in_a_clean_clone_in_namespaces_of_their_own(cache: Path) -> None:
    done = fresh(cache, "demo deb")

    assert done.returncode == 0, done.stderr
    told = (cache / "log/tiny-demo.log").read_text()
    assert told.startswith("demo in /root/nvc-py: README.md, process 1 is sh, cgroup 0::/init, "), told
    assert " pts " in told and "vda" not in told
    # The steps share the copy; the tree stays as it was.
    assert "/root/made" in (cache / "log/tiny-deb.log").read_text()
    assert list((cache / "tiny/root").iterdir()) == []
    assert {"a.deb", "cuda_alloc"} == {path.name for path in (cache / "dist/tiny").iterdir()}
    assert "tiny-deb: passed in" in done.stderr and "what is not committed is not in the clone" in done.stderr


def test_a_step_that_fails_is_shown_and_the_others_run(cache: Path) -> None:
    done = fresh(cache, "test demo", JOBS="2", PYTEST_FLAGS="-k 'a b'")

    assert done.returncode == 1
    assert "the last words of test with 2 jobs and -k 'a b'" in done.stderr
    assert re.search(rf"tiny-test: FAILED with 3 after \d+ s; all of it: {cache}/log/tiny-test.log", done.stderr)
    assert "tiny-demo: passed" in done.stderr
    assert done.stderr.splitlines()[-1] == "test-fresh: failed: tiny-test"


def test_an_unknown_step_is_refused(cache: Path) -> None:
    done = fresh(cache, "demo bench")

    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no step bench" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_one_that_is_killed_leaves_nothing_that_runs(cache: Path, number: signal.Signals) -> None:
    make = cache / "tiny/usr/bin/make"
    make.write_text(make.read_text() + "echo waits; sleep 987\n")
    variables = {"PATH": os.environ["PATH"], "TREES": "tiny", "STEPS": "demo"}
    with subprocess.Popen(command(cache), env=variables, stderr=subprocess.PIPE) as process:
        log = cache / "log/tiny-demo.log"
        assert leftovers.until(lambda: log.exists() and "waits" in log.read_text(), seconds=30)
        process.send_signal(number)
        process.communicate(timeout=30)
    if number == signal.SIGKILL:
        # Its processes end with it; the rest is removed by the next one.
        make.write_text("#!/bin/sh\n")
        assert fresh(cache, "demo").returncode == 0
