"""The engine files that the tests start from, and the shortest way to configure each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nvc.engines import containerd, crio, docker, podman
from nvc.engines.config import EngineConfig, Plan, Sources

GOLDEN = Path(__file__).parent / "golden"
CONFIG = EngineConfig(hooks_dir="/etc/containers/oci/hooks.d")
CASES = sorted(path.name.removesuffix(path.suffix).removesuffix(".before") for path in GOLDEN.glob("*.before.*"))


class Engine(NamedTuple):
    configure: Callable[..., str]
    plan: Callable[[EngineConfig, Sources], Plan]
    suffix: str


ENGINES = {
    "docker": Engine(docker.configure, docker.plan, ".json"),
    "containerd": Engine(containerd.configure, containerd.plan, ".toml"),
    "crio": Engine(crio.configure, crio.plan, ".toml"),
    "podman": Engine(podman.configure, podman.plan, ".toml"),
}


def engine(case: str) -> Engine:
    return ENGINES[case.partition("-")[0]]


def before(case: str) -> str:
    return golden(case, "before").read_bytes().decode()


def golden(case: str, part: str) -> Path:
    return GOLDEN / f"{case}.{part}{engine(case).suffix}"


def config(case: str) -> EngineConfig:
    """What each case asks for: everything, so that every kind of edit is in its golden file."""
    return CONFIG.replace(main_file="/etc/engine/config", default=True, cdi=True, hooks=case == "podman-hook")


class Memory:
    """``Sources`` and the disk in one dictionary."""

    def __init__(self, **texts: str) -> None:
        self.texts: dict[str, str] = dict(texts)
        self.backups: dict[str, str] = {}

    def read(self, path: str) -> str | None:
        return self.texts.get(path)

    def backup(self, path: str) -> str | None:
        return self.backups.get(path)

    def listing(self, pattern: str) -> list[str]:
        from fnmatch import fnmatch

        return sorted(path for path in self.texts if fnmatch(path, pattern))

    def carry_out(self, plan: Plan) -> Plan:
        for edit in plan.edits:
            assert edit.before == self.read(edit.path)
            if edit.backup == "make":
                assert edit.before is not None
                self.backups[edit.path] = edit.before
            if edit.backup == "drop":
                self.backups.pop(edit.path, None)
            if edit.after is None:
                del self.texts[edit.path]
            else:
                self.texts[edit.path] = edit.after
        return plan
