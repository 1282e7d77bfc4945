"""Every command in README.md, as it stands, on Podman 4.3 (this machine's) and 5.4 (Debian 13's).

The machine is simulated, which no line of the README says: programs of the installation are covered, in the mount
namespace of the test, by ones that know the machine. What differs from a reader's shell is ``podman``, which gets the
options that this kind of machine needs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import readme, userland
from tests.support.bed import Bed
from tests.support.cgroupview import named
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import Result

pytestmark = pytest.mark.engines
MACHINE = "h100x8"
#: What a container does that is told nothing: it shows its GPUs and its share; one with a share waits to be stopped.
SHOW = (
    'cat /etc/ld.so.preload; nvidia-smi -L; [ -z "$NVC_SHARE" ] || '
    "{ echo ready >/ready; while [ ! -e /stop ]; do sleep 0.1; done; }"
)
#: A directory of the scratch directory over /run: the share, the CDI specification and Podman's files are there.
_OWN_RUN = (
    'mkdir -p "{place}/r" && mount -t tmpfs tmpfs "{place}/r" && mkdir "{place}/r/up" "{place}/r/work" && '
    'mount -t overlay overlay -o "lowerdir=/run,upperdir={place}/r/up,workdir={place}/r/work" /run'
)
_PODMAN = """\
#!/bin/sh
if [ "$1" = run ]; then
    shift
    exec {podman} run --rm --name={name} --pids-limit=-1 --network=none {parent} "$@"
fi
exec {podman} "$@"
"""


class Reader:
    """Lines of the README, copied into a root shell."""

    def __init__(self, bed: Bed, box: PodmanBox) -> None:
        self.bed, self.box = bed, box
        self.bin = bed.directory("bin")
        self.tree = bed.rootfs()
        self.image = "localhost/readme"

    def program(self, name: str, *command: str) -> Path:
        """A program that starts another one and passes its own words on."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\nexec {quoted(command)} "$@"\n')
        path.chmod(0o755)
        return path

    def setup(self) -> str:
        """What makes the machine one that has GPUs, an image, and our programs in PATH."""
        installed, machine = self.bed.commands.directory, self.bed.machine(MACHINE)
        launchers = installed.parent / "lib/nvc-py/bin"
        real = self.bed.directory("real")
        lines = []
        for name in ("nvc-py", "nvc-hook"):
            # The launcher says of itself that it is the one in bin.
            covering = self.program(f"{name}.sim", str(launchers / name), f"--sim={machine}")
            lines.append(f"mount --bind {covering} {installed / name}")
        # It looks for its Python program beside the directory that it is in.
        (real / "bin").mkdir()
        (real / "lib").symlink_to(installed.parent / "lib")
        copy = real / "bin/nvc-runtime"
        copy.write_bytes((installed / "nvc-runtime").read_bytes())
        copy.chmod(0o755)
        (real / "bin/nvc-hook").symlink_to(installed / "nvc-hook")
        covering = self.program("nvc-runtime.sim", "/usr/bin/env", f"NVC_SIM={machine}", str(copy))
        lines.append(f"mount --bind {covering} {installed / 'nvc-runtime'}")
        parent = f"--cgroup-parent=/{self.box.name}-parent"
        (self.bin / "podman").write_text(_PODMAN.format(podman="/usr/bin/podman", name=self.box.name, parent=parent))
        (self.bin / "podman").chmod(0o755)
        made = (f"CMD {json.dumps(['/bin/sh', '-c', SHOW])}", "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin")
        changes = [word for change in made for word in ("--change", change)]
        tar = f"tar -C {self.tree} -c . | podman import -q {quoted(changes)} - {self.image}"
        return " && ".join([*lines, f"export PATH={self.bin}:{installed}:$PATH", tar])

    def copies(self, *lines: str) -> Result:
        """Type these lines of the README, one after another."""
        return self.box.script("", f"set -e; {self.setup()}; {'; '.join(self.typed(line) for line in lines)}")

    def typed(self, line: str) -> str:
        return line.replace("IMAGE", self.image)


@pytest.fixture(params=["4.3", "5.4"])
def reader(request: pytest.FixtureRequest, bed: Bed, need: Callable[..., None]) -> Iterator[Reader]:
    need("podman", "conmon", "runc")
    view = named("hybrid") or named("v2")
    assert view is not None
    place = bed.directory("podman")
    env = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
    if request.param == "4.3":
        box = PodmanBox(bed.token, "runc", view, place, env, first=_OWN_RUN.format(place=place))
    else:
        box = PodmanBox(bed.token, "runc", view, place, env, wrap=userland.wrap(userland.place()))
    box.prepare()
    found = box.script("", "podman --version")
    assert f"podman version {request.param}." in found.out, found.text
    yield Reader(bed, box)
    box.clean()


def block(beginning: str) -> list[str]:
    """The block of the README whose first line begins so."""
    (found,) = [lines for lines in readme.blocks() if lines[0].startswith(beginning)]
    return found


def test_every_command_is_run_somewhere() -> None:
    here = [line for beginning in (*FIRST_LINES,) for line in block(beginning)]

    assert [line for line in readme.commands() if line not in here and line not in readme.ELSEWHERE] == []


FIRST_LINES = (
    *("nvc-py runtime configure", "nvc-py cdi generate", "nvc-py configure", "podman run --runtime"),
    "nvc-py sim create",
)


def test_the_engine_is_set_up(reader: Reader) -> None:
    configure, run = block("nvc-py runtime configure")

    result = reader.copies(configure, run.replace("nvidia-smi", "nvidia-smi -L"))

    assert result.code == 0, result.text
    assert result.out.count("GPU-") == 8, result.text


def test_cdi(reader: Reader) -> None:
    generate, run = block("nvc-py cdi generate")

    result = reader.copies(generate, run.replace("nvidia-smi", "nvidia-smi -L"), "nvc-py cdi validate --paths")

    assert result.code == 0, result.text
    assert result.out.count("GPU-") == 1, result.text


def test_by_hand(reader: Reader) -> None:
    """The container is a mount namespace with a process in it."""
    lines = block("nvc-py configure")
    assert [line.split()[1] for line in lines] == ["configure", "configure", "list", "info"]
    made = (
        f"mount --bind {reader.tree} {reader.tree}; mount -t proc proc {reader.tree}/proc; "
        f"mount -t tmpfs tmpfs {reader.tree}/dev; unshare -m sleep 60 & pid=$!; sleep 0.3; trap 'kill $pid' EXIT"
    )
    shown = [
        line.replace("PID", "$pid").replace("ROOTFS", str(reader.tree)).replace("--pid", "--no-cgroups --pid")
        for line in lines
    ]
    result = reader.box.script("", "; ".join(["set -e", reader.setup(), made, *shown, f"ls {reader.tree}/usr/bin"]))

    assert result.code == 0, result.text
    assert "/dev/nvidia0" in result.out
    assert '"uuid"' in result.out


def test_without_a_gpu(bed: Bed) -> None:
    place = bed.directory("sim") / "machine"
    lines = [line.replace("DIR", str(place)) for line in block("nvc-py sim create")]
    result = bed.call("/bin/sh", "-c", "; ".join(["set -e", f"PATH={bed.commands.directory}:$PATH", *lines]))

    assert result.code == 0, result.text
    assert "/dev/nvidia0" in result.out


def test_a_share(reader: Reader) -> None:
    """The container runs while its share is looked at and changed, as the page has it."""
    run, top, change = block("podman run --runtime")
    setup, _ = block("nvc-py runtime configure")
    assert shlex.split(run)[-1] == "IMAGE"
    name, said = reader.box.name, f"{reader.box.place}/tmp/said"
    lines = [
        setup,
        f"{run} >{said} 2>&1 & started=$!",
        f"for i in $(seq 100); do podman exec {name} cat /ready >/dev/null 2>&1 && break; sleep 0.1; done",
        top,
        change.replace("4f0c", "$(podman ps -q | cut -c 1-4)"),
        "nvc-py share ls",
        f"podman exec {name} touch /stop; wait $started; cat {said}",
    ]
    result = reader.copies(*lines)

    assert result.code == 0, result.text
    assert "libnvc-shim.so" in result.out, result.text
    assert result.out.count("GPU-") >= 1, result.text
    assert "20.0 GiB" in result.out or "20Gi" in result.out, result.text
