"""Containers that Docker, Podman, containerd, CRI-O and Slurm start on a node with an agent: rows of enforcement.csv.

A row says what the node and the container ask for, and which enforcer the container has then, or why it does not start.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support import bundle, cri, launchers, slurm, userland
from tests.support.agentbed import RunningAgent
from tests.support.bed import Bed
from tests.support.bundle import Container
from tests.support.cgroupview import named
from tests.support.containerd import Containerd
from tests.support.crio import Crio
from tests.support.docker import Docker
from tests.support.podmanbox import PodmanBox, quoted
from tests.support.runtimes import Result, find

#: Settings of a row that are rules of the node: their key in config.toml.
RULES = ("default", "maximum", "allow-guard-off")
ALL = "NVIDIA_VISIBLE_DEVICES=all"


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    engine: str
    gives: str
    agent: str
    guard: str
    settings: str
    outcome: str
    detail: str

    def said(self, name: str) -> str:
        """The value of a setting; "": it is not there."""
        words = (word.partition("=") for word in self.settings.split())
        return next((value for key, _, value in words if key == name), "")

    @property
    def env(self) -> list[str]:
        return [word.removeprefix("env:") for word in self.settings.split() if word.startswith("env:")]

    @property
    def annotations(self) -> list[str]:
        share = [f"nvc.share={self.said('annotation')}"] if self.said("annotation") else []
        return [*share, *(["nvc.guard=off"] if "guardoff" in self.settings.split() else [])]


def rows(table: Path) -> list[Row]:
    """The rows of a table."""
    with table.open(newline="") as file:
        return [Row(**line) for line in csv.DictReader(file, delimiter="|")]


@dataclass
class Node:
    """What the engines' containers meet: an agent, a config.toml of this test's, a root with the program.

    suite: of a userland, "" for this machine's engines. token: what their processes carry beside the bed's: they end,
    the agent goes on.
    """

    agent: RunningAgent
    tree: Path
    etc: Path
    suite: str
    token: str
    started: dict[str, Docker | Containerd | Crio] = field(default_factory=dict)
    clients: dict[str, cri.Client] = field(default_factory=dict)
    cluster: slurm.Slurm | None = None

    @property
    def own(self) -> Bed:
        return self.agent.bed

    @property
    def environment(self) -> dict[str, str]:
        return {"NVC_SIM": self.agent.machine, "XDG_CONFIG_HOME": str(self.etc)}

    def configure(self, row: Row) -> None:
        """The node's config.toml: engines and runtimes read it with each container."""
        rules = {key: row.said(key) for key in RULES if row.said(key)}
        lines = "".join(f"{key} = {value if value == 'true' else json.dumps(value)}\n" for key, value in rules.items())
        directory = self.agent.directory if row.agent == "yes" else str(self.own.place / "no-agent")
        (self.etc / "nvc/config.toml").write_text(
            f'[agent]\ndirectory = "{directory}"\n[share]\nguard = "{row.guard}"\n{lines}'
            f"[nvidia-container-runtime]\nruntimes = {json.dumps([self.below(row)])}\n"
        )

    def below(self, row: Row) -> str:
        """The runtime that nvc-runtime starts; crun with what it needs here (tests/support/norlim.c)."""
        if row.engine != "podman-crun":
            return find("runc")
        preload = f"LD_PRELOAD={self.own.preload('crun', 'v2')}"
        return str(launchers.with_options(self.own.directory("crun"), "crun", "/usr/bin/env", preload, find("crun")))

    @property
    def wrap(self) -> list[str]:
        return userland.wrap(userland.place(self.suite), shares=True) if self.suite else []

    @property
    def specs(self) -> Path:
        """Where the CDI specification of a row is, for engines that read it while they run."""
        (self.own.place / "specs").mkdir(exist_ok=True)
        return self.own.place / "specs"

    def docker(self) -> Docker:
        def make() -> Docker:
            place, programs = self.own.directory("docker"), [str(self.own.commands.directory)]
            settings = {"cdi-spec-dirs": [str(self.specs)]} if self.suite else {}
            engine = Docker(self.token, place, programs, self.environment, settings, self.wrap, shares=True)
            engine.write_config()
            self._configure("docker", f"--config={engine.config}", *(["--cdi"] if self.suite else []))
            return engine

        engine = self._started("docker", make)
        assert isinstance(engine, Docker)
        return engine

    def containerd(self) -> Containerd:
        def make() -> Containerd:
            place = self.own.directory("containerd")
            engine = Containerd(self.token, place, self.environment, shares=True, wrap=self.wrap)
            engine.write_config()
            return engine

        engine = self._started("containerd", make)
        assert isinstance(engine, Containerd)
        return engine

    def cri(self) -> cri.Client:
        """kubelet's side of containerd."""

        def make() -> cri.CriContainerd:
            place, env = self.own.directory("cri"), self.environment
            engine = cri.CriContainerd(self.token, place, env, shares=True, wrap=self.wrap, specs=self.specs)
            engine.write_config()
            self._configure("containerd", "--cdi", f"--config={engine.config}")
            return engine

        engine = self._started("cri", make)
        assert isinstance(engine, cri.CriContainerd)
        return self.clients.get("cri") or self.clients.setdefault("cri", engine.client())

    def crio(self, gives: str) -> cri.Client:
        """kubelet's side of CRI-O; the hook and the runtime are set up apart from each other, as its page says."""
        name = "crio-hook" if gives == "hook" else "crio"

        def make() -> Crio:
            directory = self.own.directory("bin")
            ours = self.program(directory, "nvc-runtime", self.own.commands.runtime)
            hook = self.program(directory, "nvc-hook", self.own.commands.hook)
            engine = Crio(self.token, self.own.directory("crio"), {}, self.wrap, self.specs, shares=True)
            engine.write_config()
            paths = (f"--hook-path={hook}", f"--runtime-path={ours}", f"--hooks-dir={engine.place}/hooks.d")
            files = (f"--config={engine.config}", f"--drop-in-config={engine.drop_ins}/99-nvidia.toml")
            mode = ["--config-mode=hook"] if gives == "hook" else []
            self._configure("crio", *paths, *files, *mode)
            return engine

        engine = self._started(name, make)
        assert isinstance(engine, Crio)
        return self.clients.get(name) or self.clients.setdefault(name, engine.client())

    def slurm(self) -> slurm.Slurm:
        if self.cluster is None:
            root = userland.place(self.suite) if self.suite else None
            # Slurm wants character devices, and those of a served machine are files.
            place, machine, runtime = self.own.directory("slurm"), self.own.machine("h200"), self.own.commands.runtime
            self.cluster = slurm.of_page(self.token, place, machine, runtime, self.environment, root, shares=True)
            self.cluster.start()
        return self.cluster

    def program(self, directory: Path, name: str, target: str, *options: str) -> Path:
        """One of ours for an engine that passes no variable on."""
        where = [f"{name}={value}" for name, value in self.environment.items()]
        return launchers.with_options(directory, name, "/usr/bin/env", *where, target, *options)

    def _configure(self, engine: str, *options: str) -> None:
        words = ("runtime", "configure", f"--runtime={engine}", *options)
        self.own.call(self.own.commands.nvc, *words, check=True)

    def _started(self, name: str, make: Callable[[], Docker | Containerd | Crio]) -> Docker | Containerd | Crio:
        if name not in self.started:
            engine = self.started[name] = make()  # what fails to start is ended too
            engine.start()
            engine.import_image(self.tree)
        return self.started[name]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        for engine in self.started.values():
            engine.stop()
        if self.cluster is not None:
            self.cluster.stop()


def by_docker(node: Node, row: Row, command: Sequence[str]) -> Result:
    device, by_runtime = ["--device=nvidia.com/gpu=0"], ["--runtime=nvidia"]
    ways = {"hook": ["--gpus=all"], "runtime": [*by_runtime, "-e", ALL]}
    ways |= {"cdi": device, "cdi-runtime": [*by_runtime, *device]}
    if row.gives.startswith("cdi"):
        shutil.copy(specification(node, row), node.specs)
    asked = [word for one in row.env for word in ("-e", one)]
    asked += [word for one in row.annotations for word in ("--annotation", one)]
    return node.docker().run([*ways[row.gives], *asked], command)


def by_containerd(node: Node, row: Row, command: Sequence[str]) -> Result:
    notes = [word for one in row.annotations for word in ("--annotation", one)]
    options = [f"--runc-binary={node.own.commands.runtime}", *notes]
    return node.containerd().run(options, node.own.name("ctr"), command, env=[ALL, *row.env])


def by_cri(node: Node, row: Row, command: Sequence[str]) -> Result:
    return _as_kubelet(node, node.cri(), row, command)


def by_crio(node: Node, row: Row, command: Sequence[str]) -> Result:
    return _as_kubelet(node, node.crio(row.gives), row, command)


def _as_kubelet(node: Node, client: cri.Client, row: Row, command: Sequence[str]) -> Result:
    variables = {} if row.gives.startswith("cdi") else dict([ALL.split("=")])
    devices = []
    if row.gives.startswith("cdi"):
        shutil.copy(specification(node, row), node.specs)
        devices = ["nvidia.com/gpu=0"]
    try:
        return client.run(
            command,
            handler="nvidia" if row.gives.endswith("runtime") else "",
            env={**variables, **dict(one.split("=", 1) for one in row.env)},
            devices=devices,
        )
    except cri.CriError as error:
        return Result(1, "", str(error), 0.0)


def by_slurm(node: Node, row: Row, command: Sequence[str]) -> Result:
    """A job with one GPU; Slurm 22.05 wants the bundle's root in the bundle, and srun hands its variables on."""
    container = bundle.write(node.own.directory("bundle"), Container(Path("rootfs"), ["/bin/sh"], [ALL]))
    shutil.copytree(node.tree, container / "rootfs", symlinks=True)
    env = dict(one.split("=", 1) for one in row.env)
    # Newer ones look a command up where srun runs.
    inside = ["/bin/sh", "-c", 'exec "$@"', "sh", *command]
    return node.slurm().call("srun", "--quiet", "--gres=gpu:1", f"--container={container}", *inside, env=env)


def specification(node: Node, row: Row) -> Path:
    """Of ``cdi generate``, by this node's config.toml. The simulated machine's nodes are files, so they are mounted."""
    given = [f"--share{way}={row.said(key)}" for way, key in (("-fixed", "fixed"), ("", "share")) if row.said(key)]
    words = [f"--sim={node.agent.machine}", "cdi", "generate", "--format=json", *(given or ["--share"])]
    spec = json.loads(node.own.call(node.own.commands.nvc, *words, check=True).out)
    for edits in (spec.get("containerEdits", {}), *(one["containerEdits"] for one in spec["devices"])):
        nodes = edits.pop("deviceNodes", [])
        mounts = [
            {"hostPath": one.get("hostPath", one["path"]), "containerPath": one["path"], "options": ["rw", "bind"]}
            for one in nodes
        ]
        edits["mounts"] = [*edits.get("mounts", []), *mounts]
        for hook in edits.get("hooks", []):
            hook["env"] = [*hook.get("env", []), f"NVC_SIM={node.agent.machine}"]
            if "share" in hook["args"]:
                hook["args"].append(f"--config={node.etc}/nvc/config.toml")
    place = node.own.directory("cdi") / "nvidia.json"
    place.write_text(json.dumps(spec))
    return place


def by_podman(node: Node, row: Row, command: Sequence[str], runtime: str = "runc", view: str = "hybrid") -> Result:
    own = node.own
    directory = own.directory("bin")
    log = directory / "log"
    hook = node.program(directory, "nvc-hook", own.commands.hook, f"--debug={log}")
    ours = node.program(directory, "nvc-runtime", own.commands.runtime)
    seen = named(view) or named("v2")
    assert seen is not None
    env = {**node.environment, "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
    place, preload = own.directory("podman"), own.preload(runtime, view)
    box = PodmanBox(own.token, runtime, seen, place, env, wrap=node.wrap, preload=preload)
    box.prepare()
    paths = [f"--hook-path={hook}", f"--runtime-path={ours}"]
    mode = [] if row.gives == "hook" else ["--config-mode=config-file"]
    setup = [quoted([own.commands.nvc, "runtime", "configure", "--runtime=podman", *paths, *mode]) + " >/dev/null 2>&1"]
    if row.gives.startswith("cdi"):
        setup.append(quoted(["cp", str(specification(node, row)), "/etc/cdi/nvidia.json"]))
    device, by_runtime = ["--device=nvidia.com/gpu=0"], ["--runtime=nvidia"]
    asked = {
        "hook": ["--env", ALL],
        "runtime": [*by_runtime, "--env", ALL],
        "cdi": device,
        "cdi-runtime": [*by_runtime, *device],
    }
    options = [*asked[row.gives], *(word for one in row.env for word in ("--env", one))]
    # Podman 4.3 reads the words of --annotation as CSV.
    quote = "" if node.suite else '"'
    options += [word for one in row.annotations for word in ("--annotation", f"{quote}{one}{quote}")]
    try:
        result = box.script(" && ".join(setup), box.run_words(options, node.tree, command))
        # crun hides what a hook says (docs/reference/errors.md).
        return replace(result, err=result.err + (log.read_text() if log.exists() else ""))
    finally:
        box.clean()


def by_podman_and_crun(node: Node, row: Row, command: Sequence[str]) -> Result:
    """crun refuses hybrid cgroup trees."""
    return by_podman(node, row, command, "crun", "v2")


ENGINES: Mapping[str, Callable[[Node, Row, Sequence[str]], Result]] = {
    "docker": by_docker,
    "podman": by_podman,
    "podman-crun": by_podman_and_crun,
    "containerd": by_containerd,
    "cri": by_cri,
    "crio": by_crio,
    "slurm": by_slurm,
}
