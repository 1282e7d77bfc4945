"""Newer engines in userlands of their own, with CDI: Docker 26 and Podman 5.4 (root's and a user's) of Debian 13, and
Docker 28 and Podman 5.8 of sid."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import launchers, pages, sight, userland, users
from tests.support.bed import Bed, gpu_env
from tests.support.cgroupview import named
from tests.support.containerd import Containerd
from tests.support.docker import Docker
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import Result
from tests.support.users import User

pytestmark = pytest.mark.engines

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
LOOK = sight.arguments(nodes=("/dev/nvidia1", "/dev/nvidiactl"), libraries=LIBRARIES)
Show = Callable[[str, str], None]
Rootless = Callable[..., PodmanBox]
PAIRS = [("runc", "hybrid"), ("crun", "v1"), ("crun", "v2")]
UID_MAP = "/proc/self/uid_map"
USER_LOOK = sight.arguments(
    nodes=("/dev/nvidia1", "/dev/nvidiactl"), libraries=LIBRARIES, texts=(sight.PARAMS, UID_MAP)
)


@pytest.fixture(scope="module", params=userland.SUITES)
def root(request: pytest.FixtureRequest) -> Path:
    return userland.place(request.param)


@pytest.fixture(scope="module")
def specs(bed: Bed) -> Path:
    """A directory with the CDI specification of a machine with eight GPUs."""
    directory = bed.directory("cdi")
    sim = f"--sim={bed.machine('h100x8')}"
    bed.call(bed.commands.nvc, sim, "cdi", "generate", "--output", str(directory / "nvidia.yaml"), check=True)
    return directory


@pytest.fixture(scope="module")
def docker(bed: Bed, root: Path, specs: Path) -> Iterator[Docker]:
    """dockerd, whose daemon.json our command has edited with --cdi."""
    engine = Docker(
        bed.token,
        bed.directory("docker"),
        [str(bed.commands.directory)],
        {"NVC_SIM": str(bed.machine("h100x8"))},
        {"cdi-spec-dirs": [str(specs)]},
        userland.wrap(root),
    )
    engine.write_config()
    words = ("runtime", "configure", "--runtime=docker", "--cdi", f"--config={engine.config}")
    bed.call(bed.commands.nvc, *words, check=True)
    try:
        engine.start()
        engine.import_image(bed.base)
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def containerd(bed: Bed, specs: Path) -> Iterator[Containerd]:
    """containerd 2.1; ctr finds the CDI specification where it looks for one."""
    place = 'mkdir -p /run/cdi; cp "$1" /run/cdi/; shift; exec "$@"'
    within = ["sh", "-euc", place, "cdi", str(specs / "nvidia.yaml")]
    engine = Containerd(
        bed.token,
        bed.directory("containerd"),
        {"NVC_SIM": str(bed.machine("h100x8"))},
        wrap=userland.wrap(userland.place("sid"), within),
    )
    engine.write_config()
    try:
        engine.start()
        engine.import_image(bed.base)
        yield engine
    finally:
        engine.stop()


def read(result: Result) -> sight.Sight:
    assert result.code == 0, result.text
    return sight.read(result.out)


def gpus(seen: sight.Sight) -> list[str]:
    return [name for name in seen.lists["/dev"] if name.startswith("nvidia") and name[6:].isdigit()]


def configure(bed: Bed, *options: str) -> str:
    hook = launchers.with_options(
        bed.directory("bin"), "nvc-hook", bed.commands.hook, f"--sim={bed.machine('h100x8')}", *options
    )
    words = [bed.commands.nvc, "runtime", "configure", "--runtime=podman", f"--hook-path={hook}"]
    return f"{quoted(words)} >/dev/null 2>&1"


def env(*variables: str) -> list[str]:
    return [word for variable in variables for word in ("--env", variable)]


@pytest.mark.parametrize(
    "options",
    [
        ["--device=nvidia.com/gpu=1"],
        ['--gpus=driver=cdi,"device=nvidia.com/gpu=1"'],
        ["--gpus=device=1"],
        ["--runtime=nvidia", "-e", "NVIDIA_VISIBLE_DEVICES=1"],
    ],
    ids=["cdi", "gpus-cdi", "gpus", "runtime"],
)
def test_docker(docker: Docker, root: Path, show: Show, options: list[str]) -> None:
    seen = read(docker.run(options, LOOK))

    assert gpus(seen) == ["nvidia1"]
    assert set(seen.nodes.values()) == {"ENXIO"}
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]
    said = docker.run(options, ["nvidia-smi", "-L"])
    assert said.out.count("GPU-") == 1, said.text
    show(
        f"docker run {quoted(options)} IMAGE nvidia-smi -L   # Docker {userland.version(root, 'docker.io')}", said.text
    )


@pytest.mark.parametrize("line", pages.runs("docker"))
def test_the_lines_of_dockers_page(docker: Docker, root: Path, show: Show, line: str) -> None:
    words, command = pages.options(line, "docker")

    said = docker.run(words, command)

    assert said.out.count("GPU-") == (8 if "all" in line else 1), said.text
    show(f"{line}   # Docker {userland.version(root, 'docker.io')}", said.text)


def test_docker_says_what_cannot_be_given(docker: Docker) -> None:
    result = docker.run(["--gpus=all", "-e", "NVIDIA_REQUIRE_CUDA=cuda>=99.0"], ["/bin/true"])

    assert result.code != 0
    assert "requirement error: unsatisfied condition: cuda>=99.0" in result.err


@pytest.mark.parametrize("line", pages.runs("containerd"))
def test_the_lines_of_containerds_page(bed: Bed, containerd: Containerd, show: Show, line: str) -> None:
    """``ctr run --device`` takes a CDI name since containerd 2.0; ``--gpus`` calls nvidia-container-cli."""
    path = bed.directory("bin")
    launchers.with_options(path, "nvidia-container-cli", bed.commands.cli, f"--sim={bed.machine('h100x8')}")
    words, command = pages.options(line, "ctr")
    seen = read(containerd.run(words, bed.name("ctr"), LOOK, path=str(path)))

    assert gpus(seen) == ["nvidia0"]
    assert seen.nodes["/dev/nvidiactl"] == "ENXIO"
    assert all(seen.libraries.values())
    said = containerd.run(words, bed.name("ctr"), command, path=str(path))
    assert said.out.count("GPU-") == 1, said.text
    show(f"{line}   # containerd 2.1", said.text)


@pytest.fixture
def podman(bed: Bed, root: Path) -> Iterator[PodmanBox]:
    view = named("hybrid") or named("v2")
    assert view is not None
    env = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
    box = PodmanBox(bed.token, "runc", view, bed.directory("podman"), env, wrap=userland.wrap(root))
    box.prepare()
    yield box
    box.clean()


@pytest.mark.parametrize("option", ["--gpus=all", "--device=nvidia.com/gpu=all"])
def test_podman_with_cdi(bed: Bed, root: Path, podman: PodmanBox, specs: Path, show: Show, option: str) -> None:
    copy = f"cp {specs}/nvidia.yaml /etc/cdi/"

    seen = read(podman.script(copy, podman.run_words([option], bed.rootfs(), LOOK)))

    assert len(gpus(seen)) == 8
    assert set(seen.nodes.values()) == {"ENXIO"}
    assert all(seen.libraries.values())
    said = podman.script(copy, podman.run_words([option], bed.rootfs(), ["nvidia-smi", "-L"]))
    assert len(re.findall("GPU-", said.out)) == 8, said.text
    show(f"podman run {option} IMAGE nvidia-smi -L   # Podman {userland.version(root, 'podman')}", said.text)


@pytest.mark.parametrize("line", pages.runs("podman"))
def test_the_lines_of_podmans_page(bed: Bed, root: Path, podman: PodmanBox, specs: Path, show: Show, line: str) -> None:
    words, command = pages.options(line, "podman")

    said = podman.script(f"cp {specs}/nvidia.yaml /etc/cdi/", podman.run_words(words, bed.rootfs(), command))

    assert said.out.count("GPU-") == 8, said.text
    show(f"{line}   # Podman {userland.version(root, 'podman')}", said.text)


def test_podman_with_the_hook(bed: Bed, podman: PodmanBox) -> None:
    result = podman.script(configure(bed), podman.run_words(env(*gpu_env("1")), bed.rootfs(), LOOK))

    seen = read(result)
    assert (gpus(seen), set(seen.nodes.values())) == (["nvidia1"], {"ENXIO"})


@pytest.fixture(scope="module")
def user(bed: Bed) -> Iterator[User]:
    with users.ordinary(bed.token, bed.directory("user")) as found:
        yield found


@pytest.fixture
def rootless(bed: Bed, root: Path, user: User) -> Iterator[Rootless]:
    """Podman of the user; nodes: as in PodmanBox."""
    made: list[PodmanBox] = []

    def get(runtime: str, view: str, nodes: Path | None = None) -> PodmanBox:
        # Only runc starts on a hybrid machine; a machine without hybrid has v2 alone.
        seen = named(view) or (named("v2") if view == "hybrid" else None)
        if seen is None:
            pytest.skip(f"this machine cannot show cgroup {view}")
        env = {"PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        more = {"preload": bed.preload(runtime, view), "first": userland.account(user)}
        nodes = nodes or bed.machine("h100x8") / "dev"
        place = bed.directory("podman")
        box = PodmanBox(bed.token, runtime, seen, place, env, user, userland.wrap(root), nodes=nodes, **more)
        box.prepare()
        made.append(box)
        return box

    yield get
    for box in made:
        box.clean()
    # What one test configures as the user is not there for the next.
    shutil.rmtree(user.home / ".config", ignore_errors=True)


def check_user(seen: sight.Sight, user: User) -> None:
    """The container is in the user's namespace, not in root's, and the driver in the container."""
    assert seen.texts[UID_MAP].split()[:3] == ["0", str(user.uid), "1"]
    assert set(seen.nodes.values()) == {"ENXIO"}
    assert all(seen.libraries.values())
    assert "ModifyDeviceFiles: 0" in seen.texts[sight.PARAMS]


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize(
    ("option", "count"), [("--gpus=all", 8), ("--device=nvidia.com/gpu=1", 1)], ids=["gpus", "cdi"]
)
def test_rootless_podman_with_cdi(
    bed: Bed,
    root: Path,
    rootless: Rootless,
    user: User,
    specs: Path,
    show: Show,
    option: str,
    count: int,
    pair: tuple[str, str],
) -> None:
    box = rootless(*pair)
    copy, tree = f"cp {specs}/nvidia.yaml /etc/cdi/", bed.rootfs(owner=user.uid)

    seen = read(box.script(copy, box.run_words([option], tree, USER_LOOK)))

    check_user(seen, user)
    assert gpus(seen) == ([f"nvidia{index}" for index in range(8)] if count == 8 else ["nvidia1"])
    said = box.script(copy, f"podman --version && {box.run_words([option], tree, ['nvidia-smi', '-L'])}")
    assert f"podman version {userland.version(root, 'podman')}" in said.out, said.text
    assert len(re.findall("GPU-", said.out)) == count, said.text
    show(f"podman --version && podman run {option} IMAGE nvidia-smi -L   # user, {pair[0]}", said.text)


@pytest.mark.parametrize("line", pages.runs("rootless"))
def test_the_lines_of_the_page_on_rootless_engines(
    bed: Bed, rootless: Rootless, user: User, specs: Path, show: Show, line: str
) -> None:
    """The variable needs the hook that the page's first command sets up."""
    box, tree = rootless("runc", "hybrid"), bed.rootfs(owner=user.uid)
    words, command = pages.options(line, "podman")
    setup = configure(bed) if "-e" in words else ":"

    said = box.script(f"cp {specs}/nvidia.yaml /etc/cdi/", f"{setup} && {box.run_words(words, tree, command)}")

    assert said.out.count("GPU-") == 1, said.text
    show(f"{line}   # user", said.text)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("account", ["root", "user"])
def test_rootless_podman_with_the_hook(
    bed: Bed, rootless: Rootless, user: User, show: Show, account: str, pair: tuple[str, str]
) -> None:
    """hooks.d of the machine, which root configures, or of the user, who does it himself."""
    box, tree = rootless(*pair), bed.rootfs(owner=user.uid)
    setup = configure(bed)
    before, then = (setup, ":") if account == "root" else ("", setup)

    seen = read(box.script(before, f"{then} && {box.run_words(env(*gpu_env('1')), tree, USER_LOOK)}"))

    check_user(seen, user)
    assert gpus(seen) == ["nvidia1"]
    said = box.script(before, f"{then} && {box.run_words(env(*gpu_env('1')), tree, ['nvidia-smi', '-L'])}")
    assert len(re.findall("GPU-", said.out)) == 1, said.text
    show(
        f"podman run -e NVIDIA_VISIBLE_DEVICES=1 IMAGE nvidia-smi -L   # user, {pair[0]}, hook by {account}", said.text
    )


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_rootless_podman_says_what_cannot_be_given(
    bed: Bed, rootless: Rootless, user: User, show: Show, pair: tuple[str, str]
) -> None:
    """crun hides what a hook says, so there the reason is in the hook's --debug file (docs/reference/errors.md)."""
    box = rootless(*pair)
    log = box.place / "tmp/log"
    options = env(*gpu_env("1"), "NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    words = box.run_words(options, bed.rootfs(owner=user.uid), ["/bin/true"])

    result = box.script(configure(bed, f"--debug={log}"), words)

    assert result.code == 126, result.text
    text = result.err if pair[0] == "runc" else log.read_text()
    assert "requirement error: unsatisfied condition: cuda>=99.0" in text
    show(f"podman run {' '.join(options)} IMAGE true   # user, {pair[0]}", result.err)


def test_rootless_podman_without_a_specification(bed: Bed, rootless: Rootless, user: User, show: Show) -> None:
    """Podman reads root's directories only, not the user's own; our command says that a user may not write there."""
    box = rootless("runc", "hybrid")
    sim = f"--sim={bed.machine('h100x8')}"
    own = user.home / ".config/cdi"
    generate = [bed.commands.nvc, sim, "cdi", "generate", "--output"]
    run = box.run_words(["--gpus=all"], bed.rootfs(owner=user.uid), ["/bin/true"])

    written = box.script("", quoted([*generate, "/etc/cdi/nvidia.yaml"]))
    result = box.script("", f"mkdir -p {own} && {quoted([*generate, f'{own}/nvidia.yaml'])} && {run}")

    assert written.code != 0
    assert "/etc/cdi/nvidia.yaml could not be written: permission denied" in written.err
    assert result.code == 126, result.text
    assert "unresolvable CDI devices nvidia.com/gpu=all" in result.err
    assert (own / "nvidia.yaml").exists()
    show("podman run --gpus=all IMAGE true   # user, no CDI specification", result.err)


def test_rootless_podman_with_nodes_of_a_driver_root(
    bed: Bed, rootless: Rootless, user: User, specs: Path, show: Show
) -> None:
    """Podman ignores hostPath for a user, 5.8 as 4.3; the hook knows where the nodes are."""
    box = rootless("runc", "hybrid", bed.directory("nodes"))
    copy, tree = f"cp {specs}/nvidia.yaml /etc/cdi/", bed.rootfs(owner=user.uid)

    result = box.script(copy, box.run_words(["--device=nvidia.com/gpu=1"], tree, ["/bin/true"]))
    seen = read(box.script(configure(bed), box.run_words(env(*gpu_env("1")), tree, USER_LOOK)))

    assert result.code != 0
    assert re.search("/dev/nvidia.*: no such file or directory", result.err)
    check_user(seen, user)
    assert gpus(seen) == ["nvidia1"]
    show("podman run --device=nvidia.com/gpu=1 IMAGE true   # user, nodes in a driver root only", result.err)
