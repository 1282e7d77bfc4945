"""A bundle on disk, and the hook run in this process (logic) or in one of its own (what a runtime sees)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hook import __main__ as hook_main
from hook.target import Target

ROOT = Path(__file__).parents[2]


class BundleDirectory:
    """A bundle directory whose config.json the test writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rootfs = path / "rootfs"
        self.rootfs.mkdir(parents=True)
        self.write()

    def write(self, env: Sequence[str] = ("PATH=/bin",), **changes: Any) -> None:
        """A minimal good configuration; ``changes`` replace top-level keys, None removes one."""
        config: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "process": {"args": ["sh"], "env": list(env), "capabilities": {"bounding": ["CAP_KILL"]}},
            "root": {"path": "rootfs"},
        }
        config.update(changes)
        self.write_raw(json.dumps({key: value for key, value in config.items() if value is not None}).encode())

    def write_raw(self, data: bytes) -> None:
        (self.path / "config.json").write_bytes(data)

    def state(self, **changes: Any) -> bytes:
        """runc 1.1.5's state of a container that is being created."""
        state: dict[str, Any] = {
            "ociVersion": "1.0.2-dev",
            "id": "t1",
            "status": "creating",
            "pid": 25084,
            "bundle": str(self.path),
        }
        state.update(changes)
        return json.dumps({key: value for key, value in state.items() if value is not None}).encode()


class Outcome:
    """What one run of the hook in this process did."""

    def __init__(self, code: int, targets: list[Target], stderr: str) -> None:
        self.code = code
        self.targets = targets
        self.stderr = stderr

    @property
    def target(self) -> Target:
        (target,) = self.targets
        return target


@pytest.fixture
def bundle(tmp_path: Path) -> BundleDirectory:
    return BundleDirectory(tmp_path / "bundle")


@pytest.fixture
def serve(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Callable[..., Outcome]]:
    """Run the hook on given bytes, up to the point where a container is given its GPU."""

    def run(
        data: bytes, *argv: str, fail: BaseException | None = None, directory: str = "", program: str = "nvc-hook"
    ) -> Outcome:
        targets: list[Target] = []

        def inject(target: Target) -> None:
            targets.append(target)
            if fail is not None:
                raise fail

        path = tmp_path / "stdin"
        path.write_bytes(data)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            code = hook_main.serve(argv, program, directory, inject=inject, stdin=descriptor)
        finally:
            os.close(descriptor)
        return Outcome(code, targets, capfd.readouterr().err)

    yield run


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """What ``make install`` writes, for this source tree."""
    path = tmp_path / "launch-hook"
    path.write_text(f"import sys\nsys.path[:0] = [{str(ROOT)!r}]\nfrom hook.__main__ import run\nsys.exit(run())\n")
    return path


@pytest.fixture
def hook_process(launcher: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the hook as a runtime does: a process with stdin, an environment of its own and a working directory."""

    def run(
        *argv: str, data: bytes = b"", env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(launcher), *argv],
            input=data,
            capture_output=True,
            env=env if env is not None else {},
            cwd=cwd,
            timeout=30,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
