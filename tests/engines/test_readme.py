"""Every command in README.md, as it stands, on Podman 4.3 (this machine's) and 5.4 (Debian 13's).

The machine is simulated, which no line of the README says: programs of the installation are covered, in the mount
namespace of the test, by ones that know the machine. What differs from a reader's shell is ``podman``, which gets the
options that this kind of machine needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import readme, userland
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.cgroupview import named
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import Result
from tests.support.served import served_machine

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
#: The same, and the shares are the machine's, where the agent finds them.
_SHARED_RUN = (
    "mkdir -p /run/nvc/share '{place}/s' && mount --bind /run/nvc/share '{place}/s' && "
    + _OWN_RUN
    + " && mkdir -p /run/nvc/share && mount --bind '{place}/s' /run/nvc/share"
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
        self.machine = MACHINE
        self.config = ""
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
        installed, machine = self.bed.commands.directory, self.bed.machine(self.machine)
        launchers = installed.parent / "lib/nvc-py/bin"
        real = self.bed.directory("real")
        lines = ["mkdir -p /etc/nvc", f"printf '%s' {quoted([self.config])} >/etc/nvc/config.toml"]
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


@pytest.fixture
def served(reader: Reader) -> Iterator[RunningAgent]:
    """The reader's machine is served, and has an agent."""
    with served_machine(reader.bed) as name, RunningAgent(reader.bed, name) as agent:
        reader.machine, reader.config = name, agent.settings
        reader.box.first = _SHARED_RUN.format(place=reader.box.place)
        yield agent


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
        # Its /run is its own, and the agent is outside.
        box = PodmanBox(bed.token, "runc", view, place, env, wrap=userland.wrap(userland.place(), shares=True))
    box.prepare()
    found = box.script("", "podman --version")
    assert f"podman version {request.param}." in found.out, found.text
    yield Reader(bed, box)
    box.clean()


def test_podman(reader: Reader, served: RunningAgent) -> None:
    """README.md: the container sees its share as the whole GPU, and the agent knows it."""
    configure, agent, run = readme.block("nvc-py runtime configure --runtime=podman")
    assert agent == "systemctl enable --now nvc-agent"  # the fixture

    result = reader.copies(configure, run)

    assert (result.code, result.out.endswith(readme.shown())) == (0, True), result.text
    assert len(served.of("tenant")) == 1


def test_cdi(reader: Reader) -> None:
    generate, run = readme.block("nvc-py cdi generate")

    result = reader.copies(generate, run.replace("nvidia-smi", "nvidia-smi -L"), "nvc-py cdi validate --paths")

    assert result.code == 0, result.text
    assert result.out.count("GPU-") == 1, result.text


def test_without_a_gpu(bed: Bed) -> None:
    place = bed.directory("sim") / "machine"
    lines = [line.replace("DIR", str(place)) for line in readme.block("nvc-py sim create")]
    result = bed.call("/bin/sh", "-c", "; ".join(["set -e", f"PATH={bed.commands.directory}:$PATH", *lines]))

    assert result.code == 0, result.text
    assert "/dev/nvidia0" in result.out


def test_a_share(reader: Reader) -> None:
    """The container runs while its share is looked at and changed, as the page has it."""
    top, change = readme.block("nvc-py top")
    setup, _, run = readme.block("nvc-py runtime configure --runtime=podman")
    run = run.partition(" IMAGE ")[0] + " IMAGE"  # which waits, where the page's command ends
    name, said = reader.box.name, f"{reader.box.place}/tmp/said"
    lines = [
        setup,
        f"{run} >{said} 2>&1 & started=$!",
        f"for i in $(seq 100); do podman exec {name} cat /ready >/dev/null 2>&1 && break; sleep 0.1; done",
        top,
        change.replace("4f0c", "$(podman ps -q | cut -c 1-4)"),
        "nvc-py share ls",
        # Podman removes a container that ends while `podman exec` still asks for it.
        f"touch $(podman mount {name})/stop; wait $started; cat {said}",
    ]
    result = reader.copies(*lines)

    assert result.code == 0, result.text
    assert "libnvc-shim.so" in result.out, result.text
    assert result.out.count("GPU-") >= 1, result.text
    assert "20.0 GiB" in result.out or "20Gi" in result.out, result.text
