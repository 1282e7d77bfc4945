"""Incus 6 and 7: nvidia.runtime=true as docs/user/engines/lxc.md says, and the command in Incus's PATH."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import cgroupview, daemons, launchers, leftovers, rootfs, sight, userland
from tests.support.bed import Bed
from tests.support.launchers import CHECKOUT
from tests.support.runtimes import Result, execute

pytestmark = pytest.mark.engines

DAEMON = "usr/libexec/incus/incusd"
MACHINE = "h100x8"
PAGE = (CHECKOUT / "docs/user/engines/lxc.md").read_text()
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: In the daemon's own view of the userland: our command where Incus's PATH finds it, and the simulated machine's nodes
#: below /dev, where Incus wants the source of a device. A network of its own: incusd asks its image servers otherwise.
_VIEW = 'mount --bind "$1" /usr/local/bin; mount --bind "$2" /dev/shm; shift 2; exec unshare -n "$@"'
NODES = "/dev/shm"
#: Nothing is set up for AppArmor in the userland; on a machine that has it the profile could not be loaded.
UNCONFINED = "lxc.apparmor.profile=unconfined"
#: LXC logs the first ten reads of what a hook prints. Where no nvidia_uvm is in /proc/modules, or no such file, LXC's
#: script prints so much before our command starts that our message may come later. So: a machine with the module.
GREP = """\
#!/bin/sh
[ "$*" = "-q nvidia_uvm /proc/modules" ] || exec /usr/bin/grep "$@"
"""
Show = Callable[[str, str], None]


@dataclass
class Incus:
    """incusd in the userland, with all it keeps below ``place``.

    commands: what its /usr/local/bin is. etc: where the node's config.toml is. cgroups: what its cgroup tree is; None:
    this machine's.
    """

    bed: Bed
    root: Path
    place: Path
    commands: Path
    etc: Path
    cgroups: cgroupview.CgroupView | None = None
    containers: list[str] = field(default_factory=list, init=False)
    daemon: daemons.Daemon = field(init=False)

    def start(self) -> None:
        """Start it with a storage pool and one image. Raises daemons.NotReady."""
        view = ["sh", "-eu", "-c", _VIEW, "view", str(self.commands), str(self.bed.machine(MACHINE) / "dev")]
        command = userland.wrap(self.root, [*view, f"/{DAEMON}", "--group", "root"])
        if self.cgroups is not None:
            command = self.cgroups.wrap(command)
        self.daemon = daemons.Daemon("incusd", command, self._env(), self.place / "incusd.log")
        self.daemon.start(lambda: (self._directory / "unix.socket").exists() and self.call("query", "/1.0").code == 0)
        self.done("storage", "create", "default", "dir")
        self.done("profile", "device", "add", "default", "root", "disk", "path=/", "pool=default")
        self.done("image", "import", str(self._metadata()), str(self._image()), "--alias", "image")

    def new(self, *settings: str) -> str:
        """A container, not started; its name."""
        name = self.bed.name("incus")
        self.containers.append(name)
        self.done("init", "image", name, *(word for setting in settings for word in ("-c", setting)))
        return name

    def call(self, *words: str) -> Result:
        """The ``incus`` command."""
        return execute(userland.wrap(self.root, ["incus", *words]), env=self._env())

    def done(self, *words: str) -> Result:
        """The ``incus`` command, which must succeed."""
        result = self.call(*words)
        assert result.code == 0, f"incus {shlex.join(words)}\n{result.text}{self.logs()}"
        return result

    def look(self, name: str, *, nodes: Sequence[str] = ()) -> sight.Sight:
        """What a program in the container sees."""
        return sight.read(self.output(name, *sight.arguments(nodes=nodes, libraries=LIBRARIES)))

    def output(self, name: str, *command: str) -> str:
        """What a command in the container prints, by a file: ``incus exec`` loses output on a loaded machine."""
        self.done("exec", name, "--", "sh", "-c", 'exec "$@" >/output', "sh", *command)
        return (self._directory / "storage-pools/default/containers" / name / "rootfs/output").read_text()

    def log(self, name: str) -> str:
        """LXC's log of a container."""
        return (self._directory / "logs" / name / "lxc.log").read_text(errors="replace")

    def logs(self) -> str:
        return "".join(self.log(path.parent.name) for path in self._directory.glob("logs/*/lxc.log"))

    def stop(self) -> None:
        """Delete the containers, which run on without their daemon, and end it."""
        if self.daemon.process is not None and self.daemon.process.poll() is None:
            for name in self.containers:
                self.call("delete", "--force", name)
        self.daemon.stop()
        leftovers.end_processes(self.bed.token)
        for path in cgroupview.directories(self.bed.token):
            cgroupview.remove(path.name)
        cgroupview.remove("lxc.pivot")  # LXC leaves it; one that is in use stays

    @property
    def _directory(self) -> Path:
        return self.place / "dir"

    def _env(self) -> dict[str, str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        own = {"INCUS_DIR": str(self._directory), "INCUS_CONF": str(self.place / "conf"), "HOME": str(self.place)}
        return {"PATH": path, **own, **self.bed.env}

    def _metadata(self) -> Path:
        target = self.place / "meta.tar.gz"
        facts = {"architecture": os.uname().machine, "creation_date": 1, "properties": {"description": "test"}}
        # JSON is YAML.
        data = json.dumps(facts).encode()
        with tarfile.open(target, "w:gz") as archive:
            entry = tarfile.TarInfo("metadata.yaml")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        return target

    def _image(self) -> Path:
        """A root file system whose init only stays; its probe and loader cache are those of every other test."""
        target, tree = self.place / "rootfs.tar.gz", rootfs.copy(self.bed.base, self.bed.directory("rootfs"))
        init = tree / "sbin/init"
        init.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
        init.chmod(0o755)
        with tarfile.open(target, "w:gz", compresslevel=1) as archive:
            archive.add(tree, ".")
        return target


@pytest.fixture(scope="module", params=userland.SUITES)
def root(request: pytest.FixtureRequest) -> Path:
    place = userland.place(request.param)
    if not (place / DAEMON).exists():
        why = f"the userland {place} has no Incus: run tools/userland on it again"
        if "userland" in os.environ.get("NVC_MUST_RUN", "").split(","):
            pytest.fail(why)
        pytest.skip(why)
    return place


@pytest.fixture(scope="module")
def incus(bed: Bed, root: Path) -> Iterator[Incus]:
    commands = bed.directory("bin")
    etc = bed.directory("etc")
    command = (f"XDG_CONFIG_HOME={etc}", bed.commands.cli, f"--sim={bed.machine(MACHINE)}")
    launchers.with_options(commands, "nvidia-container-cli", "/usr/bin/env", *command)
    (commands / "grep").write_text(GREP)
    (commands / "grep").chmod(0o755)
    # LXC 7 has no support of hybrid trees.
    newer = not userland.version(root, "incus-base").startswith("6.")
    engine = Incus(bed, root, bed.directory("incus"), commands, etc, cgroupview.named("v2") if newer else None)
    try:
        engine.start()
        yield engine
    finally:
        engine.stop()


def settings(*change: tuple[str, str]) -> list[str]:
    """The settings of the page's ``incus config set``, with texts of them changed."""
    found = re.search(r"^    incus config set NAME (nvidia\.runtime=true .*)$", PAGE, re.MULTILINE)
    assert found, "the page sets no nvidia.runtime"
    text = found[1]
    for old, new in change:
        assert old in text
        text = text.replace(old, new)
    return shlex.split(text)


def test_the_settings_of_the_page(incus: Incus, show: Show) -> None:
    """A GPU is Incus's to give: here a node of the simulated machine, on a real one the page's device."""
    name = incus.new(f"raw.lxc={UNCONFINED}")
    incus.done("config", "set", name, *settings())
    source = ("unix-char", f"source={NODES}/nvidia2", "path=/dev/nvidia2", "mode=0666")
    incus.done("config", "device", "add", name, "gpu", *source)

    started = incus.done("start", name)

    seen = incus.look(name, nodes=("/dev/nvidia2", "/dev/nvidiactl"))
    assert all(seen.libraries.values())
    assert set(seen.nodes.values()) == {"ENXIO"}  # the cgroup lets it through to a driver that is not there
    assert [node for node in seen.lists["/dev"] if re.fullmatch(r"nvidia\d+", node)] == ["nvidia2"]
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    wanted = re.compile(rf"/usr/lib/{rootfs.multiarch()}/libnvidia-ml\.so\.[\d.]+|/usr/bin/nvidia-smi")
    mounted = {point: options for point, options in seen.mounts.items() if wanted.fullmatch(point)}
    assert len(mounted) == 2
    assert all({"ro", "nosuid", "nodev"} <= options for options in mounted.values())
    cache = incus.output(name, "ldconfig", "-p")
    assert all(f"{library} (" in cache for library in LIBRARIES)
    listed = incus.output(name, "nvidia-smi", "-L")
    assert listed.count("GPU-") == 1
    show(f"incus config set NAME {shlex.join(settings())}", started.text)
    show("incus exec NAME -- nvidia-smi -L", listed)


def test_a_second_start(incus: Incus) -> None:
    name = incus.new(f"raw.lxc={UNCONFINED}", *settings())
    incus.done("start", name)

    incus.done("restart", "--force", name)

    assert all(incus.look(name).libraries.values())


def test_without_the_setting_nothing_is_there(incus: Incus) -> None:
    name = incus.new(f"raw.lxc={UNCONFINED}")
    incus.done("start", name)

    seen = incus.look(name)

    assert not any(seen.libraries.values())
    assert [node for node in seen.lists["/dev"] if node.startswith("nvidia")] == []


def test_a_requirement_that_does_not_hold(incus: Incus, show: Show) -> None:
    level = re.search(r"raw\.lxc=(lxc\.log\.level=\w+)", PAGE)
    assert level, "the page does not say how to see more"
    name = incus.new(f"raw.lxc={UNCONFINED}\n{level[1]}", *settings(("cuda>=12.0", "cuda>=99.0")))

    result = incus.call("start", name)

    assert result.code != 0
    said = [line for line in incus.log(name).splitlines() if "requirement error" in line]
    assert said, incus.log(name)
    assert "unsatisfied condition: cuda>=99.0" in said[0]
    show("incus config set NAME 'nvidia.require.cuda=cuda>=99.0' && incus start NAME", result.err)
    show("grep 'requirement error' /var/log/incus/NAME/lxc.log", said[0] + "\n")
    # Incus takes a moment to see that a container which did not start has ended.
    easier = ("config", "set", name, "nvidia.require.cuda=cuda>=12.0")
    assert leftovers.until(lambda: incus.call(*easier).code == 0, seconds=20)
    incus.done("start", name)
    assert all(incus.look(name).libraries.values())


@pytest.mark.parametrize("guard", ["auto", "require"])
def test_a_node_with_a_share_for_all_does_not_keep_incus_from_gpus(incus: Incus, guard: str) -> None:
    """Its script is asked for the driver without a GPU, and the device is Incus's: the page says so."""
    assert "**Incus gives GPUs past these rules.**" in PAGE
    rules = incus.etc / "nvc/config.toml"
    rules.parent.mkdir(exist_ok=True)
    rules.write_text(f'[share]\ndefault = "mem=4Gi"\nguard = "{guard}"\n')
    name = incus.new(f"raw.lxc={UNCONFINED}", *settings())
    source = ("unix-char", f"source={NODES}/nvidia2", "path=/dev/nvidia2", "mode=0666")
    incus.done("config", "device", "add", name, "gpu", *source)
    try:
        incus.done("start", name)
    finally:
        rules.unlink()

    seen = incus.look(name, nodes=("/dev/nvidia2",))
    assert all(seen.libraries.values())
    assert seen.nodes == {"/dev/nvidia2": "ENXIO"}
