"""The chart as Helm renders it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nvc.kube.names import NAMESPACE

CHART = Path(__file__).parents[2] / "packaging/chart"


def render(
    helm: Path, values: Mapping[str, str] | None = None, *, hooks: bool = False, version: str = "1.36"
) -> list[dict[str, Any]]:
    """The objects of `helm template`. values: as for --set. hooks: hooks too. Raises CalledProcessError."""
    words = [str(helm), "template", "nvc", str(CHART), f"--namespace={NAMESPACE}", f"--kube-version={version}.0"]
    words += [f"--set={key}={value}" for key, value in (values or {}).items()]
    words += [] if hooks else ["--no-hooks"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [one for one in yaml.safe_load_all(shown) if one]
