"""What a node says of the shares of pods' containers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support.kubenode import Node


def words(node: Node, container: str) -> list[str]:
    """The share of each GPU of a container, as `nvc-py share get` says it, settings in the order of letters."""
    said = node.share("get", container)
    assert said.code == 0, said.text
    return [_sorted(line.split()[-1]) for line in said.out.splitlines()]


def rows(node: Node, container: str = "") -> list[dict[str, Any]]:
    """The rows of `nvc-py share ls`, of one container or of all."""
    said = node.share("ls", "--json")
    assert said.code == 0, said.text
    found = json.loads(said.out)
    assert found["warnings"] == []
    return [row for row in found["shares"] if container in ("", row["container"])]


def holds(node: Node, container: str, *shares: str) -> None:
    """Fails unless the container has exactly these shares, and the guard holds them."""
    assert words(node, container) == [_sorted(share) for share in shares]
    is_guarded(node, container)


def is_guarded(node: Node, container: str) -> None:
    """Fails unless the agent has the container, and its processes have a filter of the kernel's."""
    found = rows(node, container)
    assert found and all(row["guard"] for row in found), found
    status = Path(f"/proc/{node.pid(container)}/status").read_text()
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE), status


def _sorted(share: str) -> str:
    # The usual priority is said so that the node's rules change nothing.
    return ",".join(sorted(word for word in share.split(",") if word != "priority=normal"))
