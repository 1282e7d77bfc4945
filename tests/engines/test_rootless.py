"""runc and crun that an ordinary user starts himself, as Slurm does: the table of docs/user/engines/rootless.md."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import leftovers, sight, users
from tests.support.bed import Bed, gpu_env
from tests.support.bundle import PATH, Hook
from tests.support.cgroupview import named
from tests.support.runtimes import Result, execute, find
from tests.support.users import User

pytestmark = pytest.mark.engines

LOOK = sight.arguments(nodes=("/dev/nvidia2",), libraries=("libcuda.so.1", "libnvidia-ml.so.1"))


@pytest.fixture(scope="module")
def user(bed: Bed) -> Iterator[User]:
    with users.ordinary(bed.token, bed.directory("user")) as found:
        yield found


def start(bed: Bed, user: User, runtime: str, stage: str, *more: str, look: Sequence[str] = LOOK) -> Result:
    """``RUNTIME run`` of what ``runc spec --rootless`` writes, with our hook at a stage."""
    view = named("v1") or named("v2")
    assert view is not None
    directory = bed.directory("rootless")
    subprocess.run(["chown", f"{user.uid}:{user.gid}", str(directory)], check=True)
    drop = user.wrap({"PATH": PATH.partition("=")[2], leftovers.VARIABLE: bed.token})
    subprocess.run([*drop, find("runc"), "spec", "--rootless"], cwd=directory, check=True)
    config = json.loads((directory / "config.json").read_text())
    config["process"].update(terminal=False, args=list(look), env=[PATH, *gpu_env("2"), *env(bed), *more])
    config["root"] = {"path": str(bed.rootfs(owner=user.uid)), "readonly": False}
    sim = f"--sim={bed.machine('h100x8')}"
    hook = Hook(bed.commands.hook, ["nvc-hook", sim, f"--debug={directory}/log", stage], [PATH, *env(bed)])
    config["hooks"] = {stage: [hook.as_data()]}
    (directory / "config.json").write_text(json.dumps(config))
    words = [find(runtime), "--root", str(directory / "state"), "run", "--bundle", str(directory), bed.name("c")]
    result = execute(view.wrap([*drop, *words]))
    log = directory / "log"
    return Result(result.code, result.out, result.err + (log.read_text() if log.exists() else ""), result.seconds)


def env(bed: Bed) -> list[str]:
    return [f"{key}={value}" for key, value in bed.env.items()]


@pytest.mark.parametrize(
    ("runtime", "stage"),
    [("runc", "createContainer"), ("crun", "createContainer")],
)
def test_what_works(bed: Bed, user: User, runtime: str, stage: str) -> None:
    result = start(bed, user, runtime, stage)

    assert result.code == 0, result.text
    seen = sight.read(result.out)
    assert seen.nodes == {"/dev/nvidia2": "ENXIO"}
    assert all(seen.libraries.values())


SHARE = ["sh", "-c", "cat /etc/ld.so.preload; head -c 4 /run/nvc-share/limits; printf x >>/run/nvc-share/region"]


@pytest.fixture
def login(user: User) -> Iterator[Path]:
    """The directory that a login session has."""
    place = Path(f"/run/user/{user.uid}")
    made = [path for path in (place, place.parent) if not path.exists()]
    place.mkdir(parents=True, exist_ok=True)
    os.chown(place, user.uid, user.gid)
    yield place
    shutil.rmtree(place / "nvc", ignore_errors=True)
    for path in made:
        path.rmdir()


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_share_is_kept_in_the_logins_directory(bed: Bed, user: User, login: Path, runtime: str) -> None:
    result = start(bed, user, runtime, "createContainer", "NVC_SHARE=mem=2Gi", look=SHARE)

    libraries = "".join(f"/usr/lib/nvc/$PLATFORM/libnvc-shim{kind}.so\n" for kind in ("", "-managed"))
    assert (result.code, result.out) == (0, f"{libraries}NVCL"), result.text
    (entry,) = (login / "nvc/share").iterdir()
    assert bed.token in entry.name


def test_a_share_without_a_login_is_refused_with_a_hint(bed: Bed, user: User) -> None:
    result = start(bed, user, "runc", "createContainer", "NVC_SHARE=mem=2Gi", look=SHARE)

    assert result.code != 0
    assert f"share: /run/user/{user.uid}/nvc/share/" in result.err
    assert "loginctl enable-linger" in result.err


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_what_does_not_says_why(bed: Bed, user: User, stage: str) -> None:
    """These stages run as the user, outside the container's user namespace."""
    result = start(bed, user, "runc", stage)

    assert result.code != 0
    assert "namespace association failed" in result.err
    assert "use a createContainer hook" in result.err
