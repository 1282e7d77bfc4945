"""The objects in the pages about Kubernetes are valid ones, for every version that the pages name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

USER = Path(__file__).parents[2] / "docs/user"
PAGES = [*sorted((USER / "kubernetes").glob("*.md")), USER / "tutorials/pod-with-a-fraction.md"]
#: Files of programs, which no API server takes.
_NOT_SERVED = ("KubeSchedulerConfiguration",)
OBJECTS = [
    pytest.param(data, id=f"{page.stem}-{data['kind']}-{data['metadata']['name']}")
    for page in PAGES
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)
    for data in yaml.safe_load_all(text)
    if "kind" in data and data["kind"] not in _NOT_SERVED
]


@pytest.mark.parametrize("version", ["1.34", "1.36"])
@pytest.mark.parametrize("data", OBJECTS)
def test_an_example(data: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(data, version, strict=True)


def test_a_mistake_is_found() -> None:
    claim = next(one.values[0] for one in OBJECTS if one.values[0]["kind"] == "ResourceClaim")  # type: ignore[union-attr]
    broken = {**claim, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"class": "nvc-gpu"}}]}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.36", strict=True)
