"""nvc-runtime in a process of its own, with a runtime behind it that writes down how it was started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RECORDER = Path(__file__).parent / "programs/record_start.py"


class Bench:
    """A directory with nvc-runtime, nvc-hook, a recording runtime, a bundle and a config.toml."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bundle = path / "bundle"
        self.bin = path / "bin"
        for directory in (self.bundle, self.bin, path / "etc/nvc"):
            directory.mkdir(parents=True)
        self.record = path / "record"
        self._script("real", f"#!{sys.executable} -IS\n{RECORDER.read_text()}")
        for name in ("nvc-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy"):
            self._script(
                name,
                f"#!{sys.executable} -IS\nimport sys\nsys.path[:0] = [{str(ROOT)!r}]\n"
                f"sys.path += {sys.path!r}\nfrom hook.runtime.__main__ import run\nrun()\n",
            )
        self._script("nvc-hook", "#!/bin/sh\n")
        self.configure()
        self.write()

    def _script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def configure(self, runtime: str = "", more: str = "", *, runtimes: Sequence[str] | None = None) -> None:
        """Write config.toml; ``runtime``: lines of the runtime's table, ``more``: other tables."""
        chosen = [str(self.bin / "real")] if runtimes is None else list(runtimes)
        text = f"[nvidia-container-runtime]\nruntimes = {json.dumps(chosen)}\n{runtime}\n{more}\n"
        (self.path / "etc/nvc/config.toml").write_text(text)

    def write(self, env: Sequence[str] = (), **changes: Any) -> None:
        config: dict[str, Any] = {
            "ociVersion": "1.0.2",
            "process": {"env": ["PATH=/bin", *env], "capabilities": {"bounding": []}},
            "root": {"path": "rootfs"},
            **changes,
        }
        (self.bundle / "config.json").write_text(json.dumps(config))

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.bundle / "config.json").read_text())
        return found

    @property
    def executed(self) -> list[str] | None:
        """The arguments of the real runtime, None when it was not started."""
        import ast

        return list(ast.literal_eval(self.record.read_text())[0]) if self.record.exists() else None

    def run(
        self, *argv: str, name: str = "nvc-runtime", env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        self.record.unlink(missing_ok=True)
        return subprocess.run(
            [str(self.bin / name), *argv],
            capture_output=True,
            text=True,
            env={"XDG_CONFIG_HOME": str(self.path / "etc"), **(env or {})},
            cwd=cwd or self.path,
            timeout=60,
            check=False,
        )

    def create(self, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.run("create", "--bundle", str(self.bundle), "c1", **options)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
