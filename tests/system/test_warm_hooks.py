"""What nvc-runtime and hooks of CDI specs have a pre-fork server do: where it is done, of whom it is not taken.

And that a pod's container is what the Python programs make of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import launchers
from tests.support.bed import Bed
from tests.support.warm import WarmBed

pytestmark = pytest.mark.system
POD = launchers.CHECKOUT / "tests/support/programs/pod_beside_agent.py"
PYTHON = 9
LINK = "--link=served::/link"


@pytest.fixture(scope="module")
def warm(whole_bed: Bed) -> Iterator[WarmBed]:
    """A server, and a client without the Python program: what is not served ends with PYTHON."""
    made = WarmBed(whole_bed.directory("warm"))
    Path(made.python("nvc-cdi-hook")).write_text(f"#!/bin/sh\nexit {PYTHON}\n")
    made.start()
    with made:
        yield made


@pytest.fixture
def place(bed: Bed) -> Path:
    """A mount point with a bundle beside it, whose root is in what will be mounted there."""
    place = bed.directory("hooks")
    (place / "mounted").mkdir()
    config = {"ociVersion": "1.0.2", "root": {"path": str(place / "mounted/rootfs")}, "process": {"args": ["x"]}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "state").write_text(json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 0, "bundle": str(place)}))
    return place


def asked(warm: WarmBed, place: Path, script: str, *before: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a mount namespace of its own, in which $MOUNTED has a root of a container and $ASK asks."""
    text = f"""set -eu
        MOUNTED={place}/mounted; ASK='{warm.prefix}/bin/nvc-cdi-hook create-symlinks {LINK}'; PATH=/usr/sbin:/usr/bin
        mount -t tmpfs tmpfs $MOUNTED; mkdir $MOUNTED/rootfs; exec < {place}/state
        {script}"""
    words = [*before, "unshare", "--mount", "--propagation", "private", "sh", "-c", text]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_it_is_done_in_the_callers_mount_namespace(warm: WarmBed, place: Path) -> None:
    done = asked(warm, place, "$ASK; readlink $MOUNTED/rootfs/link")

    assert (done.returncode, done.stdout.strip()) == (0, "served"), done.stderr
    assert not list((place / "mounted").iterdir())


def test_a_container_with_variables_is_served_as_one_without(warm: WarmBed, place: Path) -> None:
    """A hook may be started with the container's."""
    done = asked(warm, place, "LD_PRELOAD=/nowhere.so NVC_SIM=/nowhere $ASK; readlink $MOUNTED/rootfs/link")

    assert (done.returncode, done.stdout.strip()) == (0, "served"), done.stderr


#: Nothing can be executed between the two.
PIVOT = (
    "import ctypes, os, sys; ctypes.CDLL(None).pivot_root(b'.', b'old'); "
    "os.chroot('/host'); os.execv(sys.argv[1], sys.argv[1:])"
)
PIVOTED = f"""mkdir $MOUNTED/host $MOUNTED/old; mount --rbind / $MOUNTED/host
    cd $MOUNTED; exec {sys.executable} -c "{PIVOT}" $ASK"""


@pytest.mark.parametrize(
    ("script", "before", "code"),
    [
        pytest.param("exec unshare --pid --fork --mount-proc $ASK", (), PYTHON, id="another /proc"),
        pytest.param("exec setpriv --bounding-set=-sys_admin $ASK", (), PYTHON, id="fewer rights"),
        pytest.param(
            f"exec {sys.executable} {launchers.CHECKOUT}/tests/support/programs/under_filter.py 165 $ASK",
            (),
            PYTHON,
            id="a filter of its own",
        ),
        pytest.param("exec $ASK", ("unshare", "--user", "--map-root-user"), PYTHON, id="root of a user namespace"),
        pytest.param(PIVOTED, (), 1, id="a container that has the machine's root below its own"),
    ],
)
def test_others_are_not_served(warm: WarmBed, place: Path, script: str, before: tuple[str, ...], code: int) -> None:
    """Attack: what has less than the server asks it for mounts."""
    done = asked(warm, place, script, *before)

    assert done.returncode == code, done.stderr
    assert ("is not the machine's" in done.stderr) == (code == 1)


def test_a_pod_is_what_the_python_programs_make_of_it(tmp_path: Path) -> None:
    """Its agent is where agents are, so the machine is one of its own."""
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    done = subprocess.run(
        [*words, sys.executable, POD, tmp_path], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert found["served"]["programs"] == []
    assert found["alone"]["programs"] == ["nvc-runtime", "nvc-cdi-hook"]
    for one in (found["served"], found["alone"]):
        assert one["code"] == 0, one["err"]
        assert "mem=4Gi,weight=300" in one["tenant"]
        assert f'"pid":{one["recorded"]},' in one["tenant"]
        assert "libcuda.so.1" in one["out"]
    assert found["served"]["out"] == found["alone"]["out"]
    assert found["reporting"]["code"] == 0, found["reporting"]["err"]
    assert set(found["reporting"]["imported"]) == {"0"}  # modules are imported before a request
    assert found["absent"]["code"] != 0
    assert "requires a guard" in found["absent"]["err"]
